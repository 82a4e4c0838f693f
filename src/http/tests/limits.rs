//! Connections, bytes of bodies and waits are bounded.

use super::*;

#[test]
fn slow_clients_lose_their_connection_and_a_full_house_says_so() {
    let settings = Settings { http_timeout_ms: 300, max_http_connections: 2, ..small() };
    let cores = Cores::start(settings);
    let began = Instant::now();
    let mut slow_head = TcpStream::connect(cores.address).unwrap();
    slow_head.write_all(b"POST /pub?topic=t HTT").unwrap();
    let mut slow_body = TcpStream::connect(cores.address).unwrap();
    slow_body.write_all(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\nx").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    cores.get("/ping").is(503, "TOO_MANY_CONNECTIONS");
    CoreAnswer::read(slow_body).is(408, "BODY_TIMEOUT");
    // Without an answer: nothing was asked.
    let answer = CoreAnswer::read(slow_head);
    assert!(answer.status == 0 || answer.status == 408, "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(cores.get("/ping").body, "OK");
    cores.stop();
}

#[test]
fn a_silent_connection_lives_longer_than_a_request_may_wait() {
    let settings = Settings { http_timeout_ms: 200, http_idle_timeout_ms: 1500, ..small() };
    let cores = Cores::start(settings);
    let mut stream = TcpStream::connect(cores.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let ask = |stream: &mut TcpStream| {
        stream.write_all(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = [0; 2048];
        let len = stream.read(&mut answer).unwrap();
        assert!(answer[..len].ends_with(b"\r\n\r\nOK"));
    };
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(600));
        ask(&mut stream);
    }
    let began = Instant::now();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed when it was idle for too long");
    assert!(began.elapsed() > Duration::from_millis(1200), "{:?}", began.elapsed());
    // A head that has begun is not idle.
    let mut slow_head = TcpStream::connect(cores.address).unwrap();
    slow_head.write_all(b"GET /pi").unwrap();
    let began = Instant::now();
    while slow_head.read(&mut [0]).is_ok_and(|len| len > 0) {}
    assert!(began.elapsed() < Duration::from_millis(1200), "{:?}", began.elapsed());
    cores.stop();
}

#[test]
fn a_body_may_take_long_while_it_comes_on() {
    let settings = Settings { http_timeout_ms: 600, ..small() };
    let cores = Cores::start(settings);
    let mut stream = TcpStream::connect(cores.address).unwrap();
    stream.write_all(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n").unwrap();
    for _ in 0..9 {
        std::thread::sleep(Duration::from_millis(150));
        stream.write_all(b"x").unwrap();
    }
    assert_eq!(CoreAnswer::read(stream).body, "OK");
    cores.stop();
}

#[test]
fn bytes_of_bodies_are_bounded_over_all_requests() {
    let settings = Settings {
        max_msg_size: 1 << 20,
        max_body_size: 1 << 20,
        max_pub_waiting_size: 1 << 20,
        pub_waiting_timeout_ms: 100,
        ..Settings::default()
    };
    let cores = Cores::start(settings);
    let mut hog = TcpStream::connect(cores.address).unwrap();
    hog.write_all(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n").unwrap();
    hog.write_all(&vec![b'x'; 1_000_000]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let answer = cores.post("/pub?topic=t", &vec![b'y'; 500_000]);
    assert_eq!(answer.status, 429, "{answer:?}");
    drop(hog);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(cores.post("/pub?topic=t", &vec![b'y'; 500_000]).body, "OK");
    cores.stop();
}

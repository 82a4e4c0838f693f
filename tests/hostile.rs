//! Clients that are slow, silent, greedy or mad: the node stays up, its memory bounded, and serves the others.
//!
//! Each test has a node of its own, looks at its resident memory, and ends with a client that publishes and consumes.

mod node;

use node::{Chance, Client, Frame, Node, assert_serves, command_with_body};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.tcp()).expect("it takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("not zero");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("not zero");
    stream
}

/// Raises the limit of open files to `wanted`, which the node inherits: the hard one too, where we may.
fn raise_open_files(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: each call gets a valid rlimit of ours.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let hard = limit.rlim_max;
        limit = libc::rlimit { rlim_cur: hard.max(wanted), rlim_max: hard.max(wanted) };
        let is_raised = libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0;
        assert!(
            is_raised,
            "this test needs {wanted} open files, and the hard limit is {hard}: raise it (as root `ulimit -n {wanted}` in the \
             shell that runs the tests, or a line `* hard nofile {wanted}` in /etc/security/limits.conf and a new login)"
        );
    }
}

/// The answer to bytes that must be answered by an error, and then by the end of the connection.
fn refused(node: &Node, bytes: &[u8]) -> String {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    client.write(bytes).expect("it reads, or the kernel does");
    let error = match client.read() {
        Ok(Frame::Error(text)) => text,
        other => panic!("{:?}: an error was expected: {other:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)])),
    };
    let end = client.read().expect_err("a fatal error ends the connection");
    assert!(matches!(end.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{end}");
    error
}

#[test]
fn half_sent_commands_cost_little_and_hold_up_nobody() {
    let node = Node::start(&[]);
    let before = node.resident_bytes();
    let halves: [&[u8]; 8] = [
        b"  V",
        b"  V2",
        b"  V2PU",
        b"  V2PUB topic\n",
        b"  V2PUB topic\n\0\0",
        b"  V2PUB topic\n\0\x0f\xff\xff12345",
        b"  V2MPUB topic\n\0\x4f\xff\xff\0\0\xff\xff\0\0\0\x05hell",
        b"  V2IDENTIFY\n\0\0\xff\xff{",
    ];
    let mut slow: Vec<TcpStream> = Vec::new();
    for n in 0..400 {
        let mut stream = connect(&node);
        stream.write_all(halves[n % halves.len()]).expect("a few bytes always fit");
        slow.push(stream);
    }
    assert_serves(&node);
    // A byte each, every now and then: they are never done.
    for _ in 0..5 {
        for stream in &mut slow {
            // A publish that was refused meanwhile is no loss.
            let _ = stream.write_all(b"x");
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_serves(&node);
    }
    // An announced length is not memory.
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "400 half commands cost {} KiB", grown / 1024);
}

#[test]
fn one_who_is_slow_is_still_understood() {
    let node = Node::start(&[]);
    let mut stream = connect(&node);
    let mut bytes = b"  V2".to_vec();
    bytes.extend(command_with_body("PUB slow", b"one byte at a time"));
    for byte in bytes {
        stream.write_all(&[byte]).expect("it reads");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"\0\0\0\x06\0\0\0\0OK");
    assert_serves(&node);
}

#[test]
fn impossible_lengths_are_refused_before_they_are_believed() {
    let node = Node::start(&[]);
    let before = node.resident_bytes();
    for (bytes, code) in [
        (&b"PUB t\n\xff\xff\xff\xff"[..], "E_BAD_MESSAGE"),
        (b"PUB t\n\x7f\xff\xff\xff", "E_BAD_MESSAGE"),
        (b"PUB t\n\0\x10\0\x01", "E_BAD_MESSAGE"),
        (b"PUB t\n\0\0\0\0", "E_BAD_MESSAGE"),
        (b"MPUB t\n\xff\xff\xff\xff", "E_BAD_BODY"),
        (b"MPUB t\n\0\0\x10\0\x7f\xff\xff\xff", "E_BAD_BODY"),
        (b"MPUB t\n\0\0\0\x10\0\0\0\x01\x7f\xff\xff\xff1234", "E_BAD_MESSAGE"),
        (b"IDENTIFY\n\x7f\xff\xff\xff", "E_BAD_BODY"),
        (b"RDY 5\n", "E_INVALID"),
        (b"SUB a b c\nSUB\n", "E_"),
        (b"HELO\n", "E_INVALID"),
    ] {
        for _ in 0..20 {
            let mut client = Client::connect(node.tcp()).expect("it takes connections");
            client.write(bytes).expect("a few bytes always fit");
            let error = loop {
                match client.read() {
                    Ok(Frame::Response(text)) if text == b"OK" => continue,
                    Ok(Frame::Error(text)) => break text,
                    other => panic!("{bytes:?}: an error was expected: {other:?}"),
                }
            };
            assert!(error.starts_with(code), "{bytes:?}: {error}");
        }
    }
    let text = refused(&node, b"NO_SUCH_COMMAND\n");
    assert!(text.starts_with("E_INVALID"), "{text}");
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "impossible lengths cost {} KiB", grown / 1024);
    assert_serves(&node);
}

#[test]
fn a_command_line_without_an_end_is_cut_off() {
    let node = Node::start(&[]);
    let mut stream = connect(&node);
    stream.write_all(b"  V2").expect("a few bytes always fit");
    let began = Instant::now();
    let line = vec![b'x'; 64 * 1024];
    // It must stop reading or close; it must not gather 64 MiB.
    for _ in 0..1024 {
        if stream.write_all(&line).is_err() {
            break;
        }
    }
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(15), "the connection is still there: {ended:?}");
    assert_serves(&node);
}

#[test]
fn garbage_hurts_nobody() {
    let mut node = Node::start(&[]);
    let mut chance = Chance::new(4);
    let words: [&[u8]; 12] = [
        b"  V2",
        b"PUB ",
        b"MPUB ",
        b"SUB ",
        b"FIN ",
        b"RDY ",
        b"IDENTIFY",
        b"\n",
        b"t",
        b"\0\0\0\x01",
        b"0123456789abcdef",
        b" ",
    ];
    for n in 0..1_000 {
        let mut stream = connect(&node);
        let mut bytes: Vec<u8> = if n % 4 == 0 { Vec::new() } else { b"  V2".to_vec() };
        for _ in 0..chance.below(60) {
            if chance.one_in(3) {
                bytes.push(chance.next() as u8);
            } else {
                bytes.extend_from_slice(words[chance.below(words.len() as u64) as usize]);
            }
        }
        let _ = stream.write_all(&bytes);
        if chance.one_in(2) {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
    }
    assert!(node.is_running());
    assert_serves(&node);
}

#[test]
fn ten_thousand_idle_connections_cost_little() {
    const COUNT: u64 = 10_000;
    // The node needs some for itself, and so do we.
    raise_open_files(COUNT + 500);
    // No client is given up for its silence while a slow machine connects the rest.
    let node = Node::start(&["--client-timeout=10m"]);
    let before = node.resident_bytes();
    let mut idle = Vec::new();
    for n in 0..COUNT {
        let mut stream = connect(&node);
        // Half of them say who they are, the rest nothing.
        if n % 2 == 0 {
            stream.write_all(b"  V2").expect("a few bytes always fit");
        }
        idle.push(stream);
    }
    assert_serves(&node);
    let each = node.resident_bytes().saturating_sub(before) / COUNT;
    eprintln!("{COUNT} idle connections, {each} bytes each");
    assert!(each < 32 * 1024, "an idle connection costs {each} bytes");
    // The connections are held: none was closed.
    for stream in &idle {
        stream.set_nonblocking(true).expect("it is open");
        let seen = stream.peek(&mut [0; 1]);
        let is_held = seen.as_ref().map_or_else(|e| e.kind() == ErrorKind::WouldBlock, |len| *len > 0);
        assert!(is_held, "an idle connection was closed: {seen:?}");
    }
    drop(idle);
    assert_serves(&node);
}

/// Publishes until `bytes` are acknowledged.
fn publish(node: &Node, topic: &str, bytes: u64) {
    const BODY: usize = 32 * 1024;
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    let command = command_with_body(&format!("PUB {topic}"), &[b'm'; BODY]).repeat(16);
    for _ in 0..bytes / (16 * BODY as u64) {
        client.write(&command).expect("it reads");
        (0..16).for_each(|_| client.ok().expect("it acknowledges"));
    }
}

#[test]
fn a_consumer_that_never_reads_holds_up_itself_alone() {
    // Journal and caches are small, so that what is published is several times what a node may hold of it.
    let small = ["--journal-bytes=4MiB", "--tail-cache-bytes=2MiB", "--read-cache-bytes=4MiB", "--max-pub-waiting-size=8MiB"];
    let node = Node::start(&[&small[..], &["--shards=1", "--msg-timeout=30s"]].concat());
    let mut deaf = Client::connect(node.tcp()).expect("it takes connections");
    deaf.subscribe("topic", "c", 2500).expect("it takes a SUB");
    let mut others = Client::connect(node.tcp()).expect("it takes connections");
    // It asks for messages when it reads them: none of them times out meanwhile.
    others.subscribe("topic", "d", 0).expect("it takes a SUB");
    publish(&node, "topic", 8 * MIB);
    let before = node.resident_bytes();
    publish(&node, "topic", 248 * MIB);
    let grown = node.resident_bytes().saturating_sub(before);
    eprintln!("256 MiB for a consumer that never reads cost {} MiB", grown / MIB);
    assert!(grown < 64 * MIB, "a consumer that never reads costs {} MiB", grown / MIB);
    others.write(b"RDY 100\n").expect("it reads");
    for _ in 0..4_000 {
        let message = others.message().expect("the other channel is served");
        others.finish(&message.id).expect("it reads");
    }
    // Its own channel too, by a client that reads: the deaf client's messages come back when it is gone.
    drop(deaf);
    let mut heir = Client::connect(node.tcp()).expect("it takes connections");
    heir.subscribe("topic", "c", 100).expect("it takes a SUB");
    for _ in 0..4_000 {
        let message = heir.message().expect("nothing of the channel is lost");
        heir.finish(&message.id).expect("it reads");
    }
    assert_serves(&node);
}

#[test]
fn a_publisher_that_never_reads_its_answers_is_not_read_for_ever() {
    let node = Node::start(&[]);
    let before = node.resident_bytes();
    let mut stream = connect(&node);
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("not zero");
    stream.write_all(b"  V2").expect("a few bytes always fit");
    let commands = command_with_body("PUB t", b"x").repeat(5_000);
    let (mut written, mut end) = (0, None);
    // Answers are about as large as these commands: at some point the node must stop reading them.
    while written < 128 * MIB && end.is_none() {
        match stream.write(&commands[(written % commands.len() as u64) as usize..]) {
            Ok(len) => written += len as u64,
            Err(error) => end = Some(error.kind()),
        }
    }
    let grown = node.resident_bytes().saturating_sub(before);
    eprintln!("{} MiB of commands without a reader of answers cost {} MiB, the end: {end:?}", written / MIB, grown / MIB);
    assert!(grown < 112 * MIB, "answers that nobody reads cost {} MiB", grown / MIB);
    // Most of it is in the sockets' buffers, on both sides.
    assert!(written < 32 * MIB, "{} MiB were read from who reads no answer", written / MIB);
    assert!(matches!(end, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "the write did not wait: {end:?}");
    assert_serves(&node);
}

/// Rule: back-pressure first, then a clear error, and nothing of what was acknowledged is lost with it.
#[test]
fn a_publish_that_waits_too_long_for_room_is_refused() {
    const PUBLISHERS: usize = 40;
    const ROUNDS: usize = 50;
    let node = Node::start(&["--shards=1", "--max-pub-waiting-size=1MiB", "--max-body-size=1MiB", "--pub-waiting-timeout=1ms"]);
    let mut consumer = Client::connect(node.tcp()).expect("it takes connections");
    consumer.subscribe("t", "c", 1).expect("it takes a SUB");
    let body = vec![b'm'; 1_000_000];
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..ROUNDS {
        let answers: Vec<std::io::Result<()>> = std::thread::scope(|scope| {
            let publishers: Vec<_> = (0..PUBLISHERS)
                .map(|_| scope.spawn(|| Client::connect(node.tcp()).and_then(|mut client| client.publish("t", &body))))
                .collect();
            publishers.into_iter().map(|publisher| publisher.join().expect("it does not panic")).collect()
        });
        for answer in answers {
            match answer {
                Ok(()) => taken += 1,
                Err(error) => {
                    assert!(
                        error.to_string().contains("E_PUB_TOO_MUCH_WAITING"),
                        "another end than the one that is promised: {error}"
                    );
                    refused += 1;
                }
            }
        }
        if taken > 0 && refused > 0 {
            break;
        }
    }
    eprintln!("{taken} publishes were taken, {refused} refused");
    assert!(taken > 0 && refused > 0, "{taken} publishes were taken, {refused} refused");
    // Exactly those that were acknowledged come: the error says that nothing was stored.
    for n in 0..taken {
        let message = consumer.message().unwrap_or_else(|e| panic!("message {n} of {taken}: {e}"));
        assert!(message.body == body);
        consumer.finish(&message.id).expect("it reads");
    }
    consumer.set_read_timeout(Duration::from_millis(300)).expect("not zero");
    let more = consumer.message().map(|message| message.body.len());
    assert!(more.is_err(), "a publish that was refused is delivered: {more:?}");
    // Not by a publish: 1 ms may be too short for one on any machine.
    assert!(node.get("/ping").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")));
}

#[test]
fn http_bodies_that_never_end_hold_up_nobody() {
    let node = Node::start(&[]);
    let before = node.resident_bytes();
    let head = b"POST /mpub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\nhalf a bo";
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(node.http()).expect("it takes connections");
            stream.write_all(head).expect("a few bytes always fit");
            stream
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    assert_serves(&node);
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "200 half bodies cost {} MiB", grown / MIB);
    drop(slow);
    assert_serves(&node);
}

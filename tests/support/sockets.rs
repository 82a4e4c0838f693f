//! Real sockets for the tests of net: a listener, clients, and bytes that tell where they stood.

use ringmq::base::Rng;
use ringmq::net::listen;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

//! A node whose address is taken says so before it has made or changed anything, whoever has it.
//!
//! What it cannot show is the race of two nodes for one address: `net::reserve` has a test of its own.

mod node;

use node::stock::{Process, get_json};
use node::{Chance, Client, Node, Ports};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

const FLAGS: [&str; 4] = ["--tcp-address", "--http-address", "--native-address", "--peer-address"];

/// Starts a node with these addresses, which must fail; what it says.
fn refused(data: &Path, addresses: &[String; 4]) -> String {
    let mut command = Command::new(node::binary());
    command.arg("serve").arg(format!("--data-path={}", data.display())).args(["--shards=2", "--cluster-file=not-looked-at.toml"]);
    command.args(FLAGS.iter().zip(addresses).map(|(flag, address)| format!("{flag}={address}")));
    let output = command.stdin(Stdio::null()).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

fn anywhere() -> [String; 4] {
    [const { "127.0.0.1:0" }; 4].map(String::from)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

/// Every file below, with its length and when it was changed.
fn files(below: &Path) -> Vec<(String, u64, SystemTime)> {
    let (mut found, mut folders) = (vec![], vec![below.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("it can be listed").map(|entry| entry.expect("it can be listed")) {
            let about = entry.metadata().expect("it is there");
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((entry.path().display().to_string(), about.len(), about.modified().expect("Linux knows")));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn an_address_that_any_process_has_is_said_before_anything_is_made() {
    std::thread::scope(|scope| {
        for i in 0..FLAGS.len() {
            scope.spawn(move || {
                let other = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
                let taken = other.local_addr().expect("it is bound").to_string();
                let (folder, mut addresses) = (folder(), anywhere());
                addresses[i] = taken.clone();
                let said = refused(&folder.path().join("data"), &addresses);
                assert!(said.contains(&format!("{taken} is in use: pid {} (", std::process::id())), "{said}");
                assert!(!said.contains("waiting"), "who lives is not waited for: {said}");
                assert!(folder.path().read_dir().expect("it is there").next().is_none(), "{}: something was made", FLAGS[i]);
            });
        }
    });
}

#[test]
fn another_node_that_shares_its_addresses_among_its_cores_does_not_share_them_with_a_second() {
    let node = &Node::start(&["--shards=2"]);
    let taken = [node.tcp(), node.http(), node.native()];
    std::thread::scope(|scope| {
        for (i, address) in taken.iter().enumerate() {
            scope.spawn(move || {
                let (folder, mut addresses) = (folder(), anywhere());
                addresses[i] = address.to_string();
                let said = refused(&folder.path().join("data"), &addresses);
                assert!(said.contains(&format!("{address} is in use: pid {} (ringmq)", node.pid())), "{said}");
                assert!(!said.contains("waiting"), "who lives is not waited for: {said}");
                assert!(folder.path().read_dir().expect("it is there").next().is_none(), "{}: something was made", FLAGS[i]);
            });
        }
    });
    for i in 0..20u8 {
        let mut client = Client::connect(node.tcp()).expect("every connection is the first node's");
        client.publish("t", &[i]).expect("it takes publishes");
    }
}

/// The default address of the native protocol.
const NATIVE: u16 = 4153;

/// Starts a node that is given no native address while its default one is taken, and ends the node when it is ready. Whether that
/// went well, and what the node said.
///
/// The default address is one for all of the machine, and other tests may run on it. So the child gets a network of its own where it may
/// (as root, or as a user who may have namespaces), and binds the port itself before it becomes the node.
fn serve_without_the_native_port(data: &Path, flags: &[String]) -> (bool, Vec<String>) {
    let mut command = Command::new(node::binary());
    command.arg("serve").arg(format!("--data-path={}", data.display())).args(flags);
    command.args(["--shards=1", "--journal-bytes=1MiB", "--tcp-address=0.0.0.0:0", "--http-address=0.0.0.0:0"]);
    // SAFETY: plain system calls of a child that has one thread, on its own stack.
    unsafe { command.pre_exec(take_native_port) };
    let mut node = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let log = BufReader::new(node.stderr.take().expect("it is piped"));
    let mut said = vec![];
    for line in log.lines().map_while(Result::ok) {
        let is_ready = line.contains(" ready ");
        said.push(line);
        if is_ready {
            // SAFETY: a signal to our own child, which was not waited for yet.
            unsafe { libc::kill(node.id() as i32, libc::SIGTERM) };
        }
    }
    (node.wait().expect("our own child").success(), said)
}

/// The socket is left to the program that follows.
fn take_native_port() -> std::io::Result<()> {
    // SAFETY: plain system calls; the address is a whole one, and lives until bind returns.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNET) != 0 {
            libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET);
        }
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut at: libc::sockaddr_in = std::mem::zeroed();
        (at.sin_family, at.sin_port) = (libc::AF_INET as u16, NATIVE.to_be());
        // In the network of all it may be somebody else's already, which does as well.
        libc::bind(socket, (&raw const at).cast(), size_of::<libc::sockaddr_in>() as u32);
        libc::listen(socket, 1);
    }
    Ok(())
}

#[test]
fn a_native_address_that_nobody_gave_is_done_without_when_it_is_taken() {
    let folder = folder();
    let (is_good, said) = serve_without_the_native_port(&folder.path().join("data"), &[]);
    assert!(is_good, "{said:#?}");
    // With the colon: a port that the system chose may be 41530 to 41539.
    let warned: Vec<_> = said.iter().filter(|line| line.contains(":4153 ")).collect();
    assert!(warned.len() == 1 && warned[0].contains("WARN") && warned[0].contains("Give another --native-address"), "{said:#?}");
}

/// Other nodes would send native clients to whoever has the address.
#[test]
fn a_native_address_that_the_cluster_file_lists_is_not_done_without() {
    let folder = folder();
    let (data, file) = (folder.path().join("data"), folder.path().join("cluster.toml"));
    let id = Command::new(node::binary()).args(["node-id", &format!("--data-path={}", data.display())]).output();
    let id = String::from_utf8(id.expect("the binary runs").stdout).expect("an id is text");
    let flags = [format!("--cluster-file={}", file.display()), "--peer-address=0.0.0.0:0".to_owned()];
    for (listed, is_good) in [("native_address = \"here:4153\"", false), ("", true)] {
        let node = format!("[[node]]\nname = \"a\"\nid = \"{}\"\npeer_address = \"here:5170\"\n{listed}\n", id.trim());
        let version = 1 + u64::from(is_good);
        std::fs::write(&file, format!("cluster_id = \"{}\"\nversion = {version}\n{node}", "c".repeat(32)))
            .expect("it is writable");
        let (ended_well, said) = serve_without_the_native_port(&data, &flags);
        assert_eq!(ended_well, is_good, "{said:#?}");
        let refusal =
            said.iter().find(|line| line.contains(":4153 ") && line.contains("the cluster file sends native clients to it"));
        assert_eq!(refusal.is_some(), !is_good, "{said:#?}");
    }
}

/// A client that comes by IPv4 has an address of IPv4.
#[test]
fn every_address_of_the_machine_is_of_both_versions_of_ip() {
    let hosts: Vec<IpAddr> = ["127.0.0.1", "::1"].map(|host| host.parse().expect("an address")).into();
    let hosts: Vec<IpAddr> = hosts.into_iter().filter(|host| TcpListener::bind((*host, 0)).is_ok()).collect();
    let (folder, ports) = (folder(), Ports::free());
    let at = |every: &str, n| format!("{every}:{}", ports.at(n).port());
    let flags = [
        format!("--data-path={}", folder.path().display()),
        format!("--tcp-address={}", at("0.0.0.0", 0)),
        format!("--http-address={}", at("", 1)),
        format!("--native-address={}", at("0.0.0.0", 2)),
    ];
    let mut node = Process::start(
        &node::binary(),
        ["serve", "--shards=2", "--journal-bytes=1MiB"].map(String::from).into_iter().chain(flags),
    );
    node.wait_listening(ports.at(1));
    let clients: Vec<Client> = hosts
        .iter()
        .map(|host| {
            let mut client = Client::connect((*host, ports.at(0).port()).into()).expect("it listens");
            client.subscribe("t", "c", 1).expect("it is taken");
            assert!(std::net::TcpStream::connect((*host, ports.at(2).port())).is_ok(), "the native protocol over {host}");
            client
        })
        .collect();
    for host in &hosts {
        let answer = get_json((*host, ports.at(1).port()).into(), "/stats?format=json");
        let listed = answer["topics"][0]["channels"][0]["clients"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<String> = listed.iter().filter_map(|client| client["client_id"].as_str().map(String::from)).collect();
        found.sort();
        assert_eq!(found, hosts.iter().map(IpAddr::to_string).collect::<Vec<_>>(), "over {host}: {answer}");
    }
    drop(clients);
}

#[test]
fn a_data_path_is_not_recovered_for_an_address_that_is_taken() {
    let mut node = Node::start(&["--shards=1", "--journal-bytes=1MiB"]);
    let mut client = Client::connect(node.tcp()).expect("it listens");
    client.publish("t", b"1").expect("it takes publishes");
    node.kill(); // so that a startup would replay and write
    let is_lock = |(path, ..): &(String, u64, SystemTime)| path.ends_with("/LOCK");
    let found = || files(&node.data_path()).into_iter().filter(|file| !is_lock(file)).collect::<Vec<_>>();
    let before = found();
    assert!(before.iter().any(|(path, ..)| path.ends_with("journal/0")), "{before:?}");
    let other = TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
    let mut addresses = anywhere();
    addresses[1] = other.local_addr().expect("it is bound").to_string();
    let said = refused(&node.data_path(), &addresses);
    assert!(said.contains("is in use"), "{said}");
    assert_eq!(found(), before);
    node.spawn();
    node.wait_ready().expect("its own addresses are free");
}

/// The side that closes first keeps the port in TIME_WAIT for a minute.
#[test]
fn a_restart_does_not_wait_for_connections_that_are_over() {
    let mut node = Node::start(&["--shards=1"]);
    let clients: Vec<Client> = (0..8).map(|_| Client::connect(node.tcp()).expect("it listens")).collect();
    let mut chance = Chance::new(node.pid() as u64);
    for mut client in clients {
        client.publish("t", &chance.next().to_le_bytes()).expect("it takes publishes");
        // an unknown command: the node closes
        client.write(b"NONE\n").expect("it is connected");
        while client.read().is_ok() {}
    }
    node.stop();
    let waiting = format!(":{:04X} ", node.tcp().port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let is_over = |line: &&str| line.split_whitespace().nth(1).is_some_and(|at| format!("{at} ").ends_with(&waiting));
    let states: Vec<&str> = table.lines().filter(is_over).filter_map(|line| line.split_whitespace().nth(3)).collect();
    assert!(states.contains(&"06"), "no connection is in TIME_WAIT: {states:?}");
    node.spawn();
    node.wait_ready().expect("the address is free for it");
}

//! AUTH: requests to the server, commands that wait for the answer, and the answer's permissions.

use super::*;
use crate::seam::grants::Grants;

fn auth_limits() -> Limits {
    Limits { auth_required: true, ..limits() }
}

fn grants(ttl: u64) -> Arc<Grants> {
    let json = format!(
        r#"{{"ttl":{ttl},"identity":"<me>","identity_url":"http://h?a&b","authorizations":[
            {{"permissions":["publish","subscribe"],"topic":"^t$","channels":["^c?$"]}}]}}"#
    );
    Arc::new(Grants::parse(json.as_bytes()).unwrap())
}

fn nothing() -> Arc<Grants> {
    Arc::new(Grants::parse(br#"{"ttl":10}"#).unwrap())
}

fn session() -> (Session, MockHost) {
    let (mut s, mut host) = (session_with(auth_limits()), MockHost::default());
    s.on_bytes(at(0), b"  V2", &mut host);
    (s, host)
}

fn authed(ttl: u64) -> (Session, MockHost) {
    let (mut s, mut host) = session();
    s.on_bytes(at(0), &with_body("AUTH", b"secret"), &mut host);
    assert_eq!(host.calls, ["auth 10.0.0.7 tls=false \"\" secret"]);
    host.calls.clear();
    s.authorized(at(0), Ok(grants(ttl)), &mut host);
    let answer = r#"= {"identity":"\u003cme\u003e","identity_url":"http://h?a\u0026b","permission_count":1}"#;
    assert_eq!(texts(&mut s), [answer]);
    (s, host)
}

const ALL: [(&str, &str); 3] = [("PUB t", "PUB"), ("MPUB t", "MPUB"), ("SUB t c", "SUB")];

#[test]
fn what_follows_waits_for_the_answer() {
    let (mut s, mut host) = session();
    s.on_bytes(at(0), &[with_body("AUTH", b"x"), with_body("PUB t", b"hello")].concat(), &mut host);
    s.on_bytes(at(0), b"SUB t c\n", &mut host);
    assert!(s.is_stalled() && !s.wants_reading() && host.calls.len() == 1);
    s.resume(at(1), &mut host);
    s.go_on(at(1), &mut host);
    assert!(s.is_stalled() && host.calls.len() == 1, "it is asked once");
    s.tick(at(59_000));
    assert!(!s.is_closing(), "the client is not to blame");
    s.authorized(at(60_000), Ok(grants(10)), &mut host);
    assert_eq!(host.calls[1..], ["pub t hello", "sub t c 60000 0"]);
    assert_eq!(s.client_info().auth.unwrap().identity, "<me>");
    s.authorized(at(60_000), Ok(nothing()), &mut host);
    assert!(s.client_info().auth.is_some(), "an answer comes once");
}

#[test]
fn nothing_goes_before_auth() {
    for (command, name) in ALL {
        let (mut s, mut host) = session();
        let wire = if name == "SUB" { format!("{command}\n").into_bytes() } else { with_body(command, &sized(&[b"x"])) };
        s.on_bytes(at(0), &wire, &mut host);
        assert_eq!(texts(&mut s), [format!("! E_AUTH_FIRST AUTH required before {name}")]);
        assert!(s.is_closing() && host.calls.is_empty());
    }
}

#[test]
fn what_is_not_granted_is_refused() {
    for (command, name, channel) in
        [("PUB u", "PUB", ""), ("MPUB u", "MPUB", ""), ("SUB u c", "SUB", "c"), ("SUB t d", "SUB", "d")]
    {
        let (mut s, mut host) = authed(10);
        // an MPUB is refused before its body is there
        let wire = if name == "PUB" { with_body(command, b"x") } else { format!("{command}\n").into_bytes() };
        s.on_bytes(at(0), &wire, &mut host);
        let topic = command.split(' ').nth(1).unwrap();
        assert_eq!(texts(&mut s), [format!("! E_UNAUTHORIZED AUTH failed for {name} on \"{topic}\" \"{channel}\"")]);
        assert!(s.is_closing() && host.calls.is_empty());
    }
    let (mut s, mut host) = authed(10);
    s.on_bytes(at(0), b"PUB u\n", &mut host);
    assert!(texts(&mut s).is_empty(), "a PUB is looked at when its body is there, as in nsqd");
}

#[test]
fn after_its_time_the_server_is_asked_again() {
    for (command, _) in ALL {
        let wire = match command {
            "SUB t c" => b"SUB t c\n".to_vec(),
            "PUB t" => with_body("PUB t", b"x"),
            _ => with_body("MPUB t", &sized(&[b"x"])),
        };
        let (mut s, mut host) = authed(2);
        s.on_bytes(at(1999), &wire, &mut host);
        assert_eq!(host.calls.len(), 1);
        let (mut s, mut host) = authed(2);
        s.on_bytes(at(2000), &wire, &mut host);
        assert!(s.is_stalled());
        assert_eq!(host.calls, ["auth 10.0.0.7 tls=false \"\" secret"]);
        s.authorized(at(2100), Ok(grants(2)), &mut host);
        assert_eq!(host.calls.len(), 2, "{:?}", host.calls);
        assert!(!s.is_stalled() && s.take_output().is_none());
        // taken back
        let (mut s, mut host) = authed(2);
        s.on_bytes(at(2000), &wire, &mut host);
        s.authorized(at(2100), Ok(nothing()), &mut host);
        assert!(texts(&mut s)[0].starts_with("! E_UNAUTHORIZED AUTH failed for "));
        // and no answer
        let (mut s, mut host) = authed(2);
        s.on_bytes(at(2000), &wire, &mut host);
        s.authorized(at(2100), Err("down".into()), &mut host);
        assert_eq!(texts(&mut s), ["! E_AUTH_FAILED AUTH failed"]);
        assert!(s.is_closing());
    }
}

#[test]
fn a_refusal_says_no_more_than_nsqd() {
    let (mut s, mut host) = session();
    s.on_bytes(at(0), &with_body("AUTH", b"x"), &mut host);
    s.authorized(at(0), Err("10.1.1.1: down".into()), &mut host);
    assert_eq!(texts(&mut s), ["! E_AUTH_FAILED AUTH failed"]);
    assert!(s.is_closing());
    let (mut s, mut host) = session();
    s.on_bytes(at(0), &with_body("AUTH", b"x"), &mut host);
    s.authorized(at(0), Ok(nothing()), &mut host);
    assert_eq!(texts(&mut s), ["! E_UNAUTHORIZED AUTH no authorizations found"]);
    let (mut s, mut host) = authed(9);
    s.on_bytes(at(0), &with_body("AUTH", b"again"), &mut host);
    assert_eq!(texts(&mut s), ["! E_INVALID AUTH already set"]);
    let (mut s, mut host) = (super::greeted(), MockHost::default());
    s.on_bytes(at(0), &with_body("AUTH", b"x"), &mut host);
    assert_eq!(texts(&mut s), ["! E_AUTH_DISABLED AUTH disabled"]);
    // and a session that has ended hears nothing
    let (mut s, mut host) = session();
    s.on_bytes(at(0), &with_body("AUTH", b"x"), &mut host);
    s.fail_stalled(ClientError::fatal("E_PUB_FAILED", "stopping"));
    s.authorized(at(0), Ok(grants(2)), &mut host);
    assert_eq!(texts(&mut s), ["! E_PUB_FAILED stopping"]);
}

#[test]
fn what_was_granted_moves_along() {
    let (mut s, mut host) = authed(10);
    host.next = vec![CommandTaken::Stall];
    s.on_bytes(at(0), &with_body("PUB t", b"x"), &mut host);
    let (carried, unread) = s.carry();
    let mut s = Session::adopt(ConnId(2), Peer("10.0.0.7:4711".into()), carried, Arc::new(auth_limits()), at(0));
    s.on_bytes(at(1), &unread, &mut host);
    assert_eq!(host.calls, ["pub t x", "pub t x"]);
}

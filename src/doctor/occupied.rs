//! Checks whether the data path and the addresses of a node are free, and names the process that has them.

use super::Finding;
use crate::config::Settings;
use crate::coordinator::Coordinator;
use crate::disk::lock;
use crate::net::{NetError, Reserved};
use std::path::Path;
use std::time::Duration;

pub fn check(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![data_path(settings)];
    let mut addresses = vec![("tcp-address", &settings.tcp_address)];
    if !settings.http_address.is_empty() {
        addresses.push(("http-address", &settings.http_address));
    }
    if !settings.native_address.is_empty() {
        addresses.push(("native-address", &settings.native_address));
    }
    if settings.is_https_served() {
        addresses.push(("https-address", &settings.https_address));
    }
    if settings.is_clustered() {
        addresses.push(("peer-address", &settings.peer_address));
    }
    findings.extend(addresses.into_iter().map(|(name, address)| self::address(settings, name, address)));
    findings
}

fn data_path(settings: &Settings) -> Finding {
    const NAME: &str = "data path";
    let path = &settings.data_path;
    match lock::owner(Path::new(path)) {
        Ok(None) => Finding::ok(NAME, format!("{path}: no node runs on it")),
        Ok(Some(holder)) => {
            let remedy = "stop that node, or give this one another --data-path";
            Finding::fail(NAME, format!("{path} is in use by {holder}"), remedy)
        }
        Err(e) => Finding::fail(NAME, format!("{path}: the lock cannot be read: {e}"), "let this user read and write there"),
    }
}

/// Takes the address, and lets go of it at once.
fn address(settings: &Settings, name: &'static str, address: &str) -> Finding {
    match Reserved::take(address, Duration::ZERO) {
        Ok(_) => Finding::ok(name, format!("{address} is free")),
        Err(taken @ NetError::InUse { .. }) if name == "native-address" && is_done_without(settings) => {
            let remedy = "the node starts without the native protocol; give another address, or an empty one";
            Finding::warn(name, taken.to_string(), remedy)
        }
        Err(taken @ NetError::InUse { .. }) if name == "https-address" && !settings.given.contains(name) => {
            Finding::warn(name, taken.to_string(), "the node starts without HTTPS; give another address, or an empty one")
        }
        Err(taken @ NetError::InUse { .. }) => {
            Finding::fail(name, taken.to_string(), format!("stop that process, or give another --{name}"))
        }
        Err(error) => Finding::fail(name, error.to_string(), format!("give another --{name}")),
    }
}

/// True if a node starts without the native address: it was not given, and no cluster file sends clients there.
fn is_done_without(settings: &Settings) -> bool {
    let coordinator = Coordinator::open(settings).ok().flatten();
    settings.is_native_optional() && coordinator.and_then(|c| c.listed_native_address()).is_none()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::disk::DataLock;
    use std::net::TcpListener;

    #[test]
    fn what_somebody_has_is_named_with_its_holder() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let at = || "127.0.0.1:0".to_owned();
        let free = Settings {
            data_path: folder.path().join("data").to_str().unwrap().to_owned(),
            tcp_address: at(),
            http_address: at(),
            native_address: at(),
            ..Settings::default()
        };
        assert!(check(&free).iter().all(|finding| finding.level == Level::Ok), "{:?}", check(&free));
        assert!(folder.path().read_dir().unwrap().next().is_none(), "nothing is made");
        let _lock = DataLock::acquire(Path::new(&free.data_path), Duration::ZERO).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().to_string();
        let failed = check(&Settings { http_address: taken.clone(), native_address: taken, ..free });
        let failed: Vec<_> = failed.iter().filter(|f| f.level == Level::Fail).collect();
        let pid = format!("pid {}", std::process::id());
        assert!(failed.iter().all(|f| f.found.contains(&pid) && !f.remedy.is_empty()), "{failed:?}");
        let names: Vec<_> = failed.iter().map(|f| f.name).collect();
        assert_eq!(names, ["data path", "http-address", "native-address"]);
    }
}

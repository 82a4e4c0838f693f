//! Cores that cannot start, or end by themselves, take the node down and leave nobody waiting.

use super::clock::Clock;
use super::cores::{BLOCKING_THREADS, Build, CoreParts, CoresError, CoresOptions, executor, run_cores};
use super::machine::Machine;
use super::stop::StopHandle;
use super::turn::ListenerKind;
use crate::base::{CoreId, Now, Ticks};
use crate::config::Settings;
use crate::disk::{DiskOptions, files};
use crate::mesh::{Wake, mesh};
use crate::net::{NetOptions, listen};
use crate::ring::WakeFd;
use crate::seam::event::{Effect, Effects, Event};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Panics at the first byte.
#[derive(Default)]
struct Fragile {
    stopping: bool,
}

impl Machine for Fragile {
    fn step(&mut self, _now: Now, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::Bytes { .. } => panic!("fragile"),
            Event::Stop => self.stopping = true,
            Event::TurnEnd if self.stopping => out.push(Effect::Stopped),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Ticks> {
        None
    }
}

fn options(data: &Path) -> CoresOptions {
    CoresOptions {
        coordinator: None,
        data: data.to_owned(),
        net: NetOptions::default(),
        disk: DiskOptions::default(),
        spin_before_park: Duration::ZERO,
        stall_log: Duration::from_secs(1),
        clock: Clock::start(),
        tls: None,
        peer_tls: None,
    }
}

/// Two cores, each with a listener of its own.
fn parts(builds: [Build<Fragile>; 2]) -> (Vec<CoreParts<Fragile>>, SocketAddr) {
    let (mut ports, http) = mesh(2);
    let wakes = [WakeFd::new().unwrap(), WakeFd::new().unwrap()];
    let wakers: Vec<Arc<dyn Wake>> = wakes.iter().map(|wake| wake.clone() as _).collect();
    ports.iter_mut().for_each(|port| port.connect_wakers(&wakers, wakes[0].clone()));
    drop(http);
    let listeners = [listen("127.0.0.1:0").unwrap(), listen("127.0.0.1:0").unwrap()];
    let address = listeners[1].local_addr().unwrap();
    let each = listeners.into_iter().zip(ports).zip(wakes).zip(builds);
    (
        each.map(|(((listener, port), wake), build)| CoreParts {
            listeners: vec![(ListenerKind::Nsq, listener)],
            port,
            wake,
            build,
        })
        .collect(),
        address,
    )
}

fn good() -> Build<Fragile> {
    Box::new(|_| Fragile::default())
}

#[test]
fn cores_start_and_stop() {
    let data = tempfile::tempdir_in(".").unwrap();
    files::write_probe(data.path()).unwrap();
    let stop = StopHandle::new();
    let (parts, _) = parts([good(), good()]);
    let running = run_cores(&options(data.path()), parts, &stop).unwrap();
    running.request_stop();
    let ended = running.join().unwrap();
    assert!(ended.len() == 2 && ended.iter().all(|core| core.turns.count() > 0) && !stop.is_requested());
}

/// Folders are synced, files made, cut and removed there, beside the executor.
#[test]
fn blocking_calls_of_a_core_run_beside_each_other() {
    let running = Arc::new(AtomicUsize::new(0));
    let count = running.clone();
    let all = executor(0).spawn(move || async move {
        let begin = |_| {
            let count = count.clone();
            glommio::executor().spawn_blocking(move || {
                count.fetch_add(1, Ordering::SeqCst);
                let begun = Instant::now();
                while count.load(Ordering::SeqCst) < BLOCKING_THREADS && begun.elapsed() < Duration::from_secs(10) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                count.load(Ordering::SeqCst) == BLOCKING_THREADS
            })
        };
        let calls: Vec<_> = (0..BLOCKING_THREADS).map(begin).map(glommio::spawn_local).collect();
        let mut met = 0;
        for call in calls {
            met += call.await as usize;
        }
        met
    });
    assert_eq!(all.unwrap().join().unwrap(), BLOCKING_THREADS);
}

#[test]
fn nothing_spins_unless_it_was_told_to() {
    assert_eq!(Settings::default().spin_before_park_us, 0);
}

#[test]
fn a_core_that_cannot_start_says_why_and_the_others_end() {
    let data = tempfile::tempdir_in(".").unwrap();
    let (without_probe, _) = parts([good(), good()]);
    let Err(error) = run_cores(&options(data.path()), without_probe, &StopHandle::new()) else { panic!("it cannot start") };
    assert!(error.to_string().contains("probe"), "{error}");

    files::write_probe(data.path()).unwrap();
    let bad: Build<Fragile> = Box::new(|core: CoreId| panic!("core {} cannot be made", core.0));
    let (one_bad, _) = parts([good(), bad]);
    let Err(error) = run_cores(&options(data.path()), one_bad, &StopHandle::new()) else { panic!("it cannot start") };
    assert!(matches!(error, CoresError::Start { core: 1, .. }), "{error}");
}

#[test]
fn a_core_that_ends_by_itself_takes_the_node_with_it() {
    let data = tempfile::tempdir_in(".").unwrap();
    files::write_probe(data.path()).unwrap();
    let stop = StopHandle::new();
    let (parts, address) = parts([good(), good()]);
    let running = run_cores(&options(data.path()), parts, &stop).unwrap();
    TcpStream::connect(address).unwrap().write_all(b"x").unwrap();
    assert_eq!(stop.wait(|| {}), "core 1 ended");
    let Err(error) = running.join() else { panic!("core 1 has panicked") };
    assert!(matches!(error, CoresError::Ended { core: 1, .. }), "{error}");
}

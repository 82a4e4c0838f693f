//! How far an import is: a line that is written over on a terminal, a line for each queue in a pipe. On the standard error.

use crate::text::{bytes, grouped};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(200);

pub struct Progress {
    /// Bytes of the queues' files in all, those that were done before left out.
    total: u64,
    bodies: u64,
    messages: u64,
    began: Instant,
    shown: Option<Instant>,
    queue: String,
    is_terminal: bool,
    is_quiet: bool,
    interrupted: Arc<AtomicBool>,
}

impl Progress {
    /// Ctrl-C and SIGTERM end the import between two batches from here on.
    pub fn new(total: u64, is_quiet: bool) -> Progress {
        let interrupted = Arc::new(AtomicBool::new(false));
        let seen = interrupted.clone();
        tokio::spawn(async move {
            crate::until_signal().await;
            seen.store(true, Ordering::Relaxed);
        });
        Progress {
            total,
            bodies: 0,
            messages: 0,
            began: Instant::now(),
            shown: None,
            queue: String::new(),
            is_terminal: std::io::stderr().is_terminal(),
            is_quiet,
            interrupted,
        }
    }

    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// A queue that an earlier run did.
    pub fn skip(&mut self, bytes: u64) {
        self.total = self.total.saturating_sub(bytes);
    }

    pub fn begin(&mut self, topic: &str, channel: Option<&str>) {
        self.queue = channel.map_or_else(|| topic.to_owned(), |channel| format!("{topic}/{channel}"));
        if !self.is_terminal && !self.is_quiet {
            eprintln!("ringmq: importing {}", self.queue);
        }
    }

    pub fn stored(&mut self, messages: u64, bodies: u64) {
        self.messages += messages;
        // 30 bytes of each record are not its body.
        self.bodies += bodies + 30 * messages;
        if self.is_terminal && !self.is_quiet && self.shown.is_none_or(|at| at.elapsed() >= INTERVAL) {
            self.shown = Some(Instant::now());
            let seconds = self.began.elapsed().as_secs_f64().max(0.001);
            let rate = self.messages as f64 / seconds;
            let left = self.total.saturating_sub(self.bodies) as f64 / (self.bodies as f64 / seconds).max(1.0);
            let percent = (self.bodies * 100).checked_div(self.total).unwrap_or(100).min(100);
            eprint!(
                "\r\x1b[K{} \x1b[1m{percent} %\x1b[0m  {} messages, {}  {}/s  {left:.0} s left",
                self.queue,
                grouped(self.messages),
                bytes(self.bodies),
                grouped(rate as u64)
            );
            let _ = std::io::stderr().flush();
        }
    }

    pub fn end(&mut self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

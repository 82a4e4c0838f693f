//! Progress of an import: a line that is written over on a terminal, a line for each queue in a pipe, both on the standard error; or
//! lines of a node's log.

use crate::text::{bytes, grouped};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Place of the progress.
enum ProgressOutput {
    Nowhere,
    Terminal,
    Pipe,
    Log(fn(&str)),
}

pub struct Progress {
    /// Bytes of the queues' files in all, those that were done before left out.
    total: u64,
    bodies: u64,
    messages: u64,
    began: Instant,
    last_shown: Option<Instant>,
    queue: String,
    shown: ProgressOutput,
    is_interrupted: Box<dyn Fn() -> bool>,
}

impl Progress {
    /// Progress on standard error. From this call on Ctrl-C and SIGTERM end the import between two batches.
    pub fn of_command(is_quiet: bool) -> Progress {
        let interrupted = Arc::new(AtomicBool::new(false));
        let seen = interrupted.clone();
        tokio::spawn(async move {
            crate::until_signal().await;
            seen.store(true, Ordering::Relaxed);
        });
        let shown = match (is_quiet, std::io::stderr().is_terminal()) {
            (true, _) => ProgressOutput::Nowhere,
            (_, true) => ProgressOutput::Terminal,
            _ => ProgressOutput::Pipe,
        };
        Progress::new(shown, Box::new(move || interrupted.load(Ordering::Relaxed)))
    }

    /// Progress in the log of a node that starts; `is_stopped` ends the import between two batches.
    pub fn of_log(say: fn(&str), is_stopped: Box<dyn Fn() -> bool>) -> Progress {
        Progress::new(ProgressOutput::Log(say), is_stopped)
    }

    fn new(shown: ProgressOutput, is_interrupted: Box<dyn Fn() -> bool>) -> Progress {
        Progress {
            total: 0,
            bodies: 0,
            messages: 0,
            began: Instant::now(),
            last_shown: None,
            queue: String::new(),
            shown,
            is_interrupted,
        }
    }

    pub fn set_total(&mut self, bytes: u64) {
        self.total = bytes;
    }

    pub fn is_interrupted(&self) -> bool {
        (self.is_interrupted)()
    }

    /// A queue that an earlier run did.
    pub fn skip(&mut self, bytes: u64) {
        self.total = self.total.saturating_sub(bytes);
    }

    pub fn begin(&mut self, topic: &str, channel: Option<&str>) {
        self.queue = channel.map_or_else(|| topic.to_owned(), |channel| format!("{topic}/{channel}"));
        if matches!(self.shown, ProgressOutput::Pipe) {
            eprintln!("ringmq: importing {}", self.queue);
        }
    }

    pub fn stored(&mut self, messages: u64, bodies: u64) {
        self.messages += messages;
        // 30 bytes of each record are not its body.
        self.bodies += bodies + 30 * messages;
        let interval = match self.shown {
            ProgressOutput::Nowhere | ProgressOutput::Pipe => return,
            ProgressOutput::Terminal => TERMINAL_INTERVAL,
            ProgressOutput::Log(_) => LOG_INTERVAL,
        };
        let since = self.last_shown.unwrap_or(self.began).elapsed();
        if since >= interval {
            self.last_shown = Some(Instant::now());
            self.show();
        }
    }

    fn show(&self) {
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let rate = self.messages as f64 / seconds;
        let left = self.total.saturating_sub(self.bodies) as f64 / (self.bodies as f64 / seconds).max(1.0);
        let percent = (self.bodies * 100).checked_div(self.total).unwrap_or(100).min(100);
        let (messages, size, rate) = (grouped(self.messages), bytes(self.bodies), grouped(rate as u64));
        match self.shown {
            ProgressOutput::Nowhere | ProgressOutput::Pipe => {}
            ProgressOutput::Terminal => {
                eprint!(
                    "\r\x1b[K{} \x1b[1m{percent} %\x1b[0m  {messages} messages, {size}  {rate}/s  {left:.0} s left",
                    self.queue
                );
                let _ = std::io::stderr().flush();
            }
            ProgressOutput::Log(say) => {
                say(&format!("importing nsqd's backlog: {percent} %, {messages} messages, {rate}/s, {left:.0} s left"))
            }
        }
    }

    pub fn end(&mut self) {
        if matches!(self.shown, ProgressOutput::Terminal) && self.last_shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

//! The tools beside a node: import, tail, pub, stat, top, topic, channel, check-flags. They reach nodes only over the network, except
//! the import's own node, and need no glommio.
//!
//! Each tool is a `clap` command and a function that runs it to an exit code: 0 done, 1 it failed (the message says what to do), 2 a
//! wrong call. A closed pipe behind a tool ends it silently; the binary does that by leaving SIGPIPE alone.

pub mod address;
mod admin;
pub mod check_flags;
mod http;
pub mod import;
mod nsq;
mod options;
mod publish;
pub mod secure;
pub mod shell;
mod stat;
mod stats;
mod tail;
pub mod text;
pub mod tips;
mod top;

use clap::{ArgMatches, Command};
use std::io::Write;
use std::process::ExitCode;

/// The tools, for the binary's own command.
pub fn commands() -> Vec<Command> {
    vec![
        import::command::command(),
        check_flags::command(),
        tail::command(),
        publish::command(),
        stat::command(),
        top::command(),
        admin::topic_command(),
        admin::channel_command(),
    ]
}

/// Runs the tool of this name. `None`: it is none of them.
pub fn run(name: &str, matches: &ArgMatches) -> Option<ExitCode> {
    Some(match name {
        "import" => import::command::execute(matches),
        "check-flags" => check_flags::execute(matches),
        "tail" => tail::execute(matches),
        "pub" => publish::execute(matches),
        "stat" => stat::execute(matches),
        "top" => top::execute(matches),
        "topic" => admin::execute_topic(matches),
        "channel" => admin::execute_channel(matches),
        _ => return None,
    })
}

/// Runs on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("only a process without file descriptors has no runtime");
    let done = runtime.block_on(future);
    // A read of the standard input may be under way, which nothing ends.
    runtime.shutdown_background();
    done
}

/// Prints to standard output; a failed write ends the tool.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    error.to_string().lines().for_each(|line| eprintln!("ringmq: {line}"));
    ExitCode::FAILURE
}

fn misused(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("ringmq: {error}");
    ExitCode::from(2)
}

/// Waits for SIGINT or SIGTERM.
async fn until_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

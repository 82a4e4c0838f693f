//! Where the binary calls the rooms that do the work.

use ringmq::config::Settings;
use std::process::ExitCode;

/// Runs until SIGTERM or SIGINT.
pub fn run_node(_settings: Settings) -> Result<(), String> {
    Err("this build has no runtime room yet".into())
}

pub fn doctor(_settings: &Settings) -> ExitCode {
    eprintln!("ringmq: this build has no doctor yet");
    ExitCode::FAILURE
}

pub fn inspect(_data_path: &str, _verbose: bool) -> ExitCode {
    eprintln!("ringmq: this build has no inspect yet");
    ExitCode::FAILURE
}

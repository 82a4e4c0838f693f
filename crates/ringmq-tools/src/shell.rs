//! Completions and man pages, made from the flags.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub fn commands() -> [Command; 2] {
    [
        Command::new("completions")
            .about("Print the completions of a shell")
            .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell)).help("Shell"))
            .after_help("For bash: ringmq completions bash >/usr/share/bash-completion/completions/ringmq"),
        Command::new("man")
            .about("Write the man pages into a folder")
            .long_about("Write the man pages into a folder: ringmq.1 and one for each command.")
            .arg(Arg::new("folder").required(true).value_name("folder").help("Folder, which is made if it is missing")),
    ]
}

/// `command`: all of the binary's flags.
pub fn completions(matches: &ArgMatches, mut command: Command) -> ExitCode {
    let shell = *matches.get_one::<Shell>("shell").expect("clap asks for it");
    let mut script = vec![];
    clap_complete::generate(shell, &mut command, "ringmq", &mut script);
    crate::print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

pub fn man(matches: &ArgMatches, command: Command) -> ExitCode {
    let folder = PathBuf::from(matches.get_one::<String>("folder").expect("clap asks for it"));
    match write_pages(command, &folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::failed(&format!("{}: {error}", folder.display())),
    }
}

fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), folder)
}

//! The short help of the daemons (`-h`): the flags of an operator's first day, a line each, on one screen of 80 x 24.

use clap::{Arg, ArgAction, Command};

/// Id of the flag `-h`.
const BRIEF: &str = "brief";

/// Adds `-h`, which the caller answers by [`text`], and `--help`, which clap answers.
pub fn with_help(command: Command) -> Command {
    let brief = Arg::new(BRIEF).short('h').action(ArgAction::SetTrue).help("Print the most used flags, on one screen");
    let full = Arg::new("help").long("help").action(ArgAction::HelpLong).help("Print all flags");
    command.disable_help_flag(true).arg(brief.help_heading("Help")).arg(full.help_heading("Help"))
}

pub fn is_asked_for(matches: &clap::ArgMatches) -> bool {
    matches.get_flag(BRIEF)
}

/// The short help; `call` is the program with its subcommand, a flag stands with its value.
pub fn text(call: &str, about: &str, flags: impl Iterator<Item = (String, &'static str)>) -> String {
    let ends =
        [("--version".to_owned(), "Print the version"), ("--help".to_owned(), "Print all flags with their full descriptions")];
    let rows: Vec<_> =
        [("--config=FILE".to_owned(), "TOML file of these settings; flags win")].into_iter().chain(flags).chain(ends).collect();
    let width = rows.iter().map(|(flag, _)| flag.len()).max().unwrap_or_default();
    let lines: String = rows.iter().map(|(flag, about)| format!("  {flag:width$}  {about}\n")).collect();
    format!("{about}. Usage: {call} [FLAGS]\n\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_their_meanings_stand_in_two_columns() {
        let text = text("ringmq x", "Run x", [("--a-long-one=1".to_owned(), "One")].into_iter());
        assert!(text.starts_with("Run x. Usage: ringmq x [FLAGS]\n\n  --config=FILE   TOML"), "{text}");
        assert!(text.contains("\n  --a-long-one=1  One\n  --version       Print"), "{text}");
    }
}

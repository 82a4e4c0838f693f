//! The log, and the config file that the binary reads again on SIGHUP: only its log level takes effect at once.

use crate::parts::Prefixed;
use ringmq::config::{LoadedSettings, Settings};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::{Registry, fmt};

/// The least severe line that is written, while the node runs.
#[derive(Clone)]
pub struct LogLevel(Handle<LevelFilter, Registry>);

impl ringmq::http::LogLevel for LogLevel {
    fn get(&self) -> &'static str {
        match self.0.clone_current() {
            Some(LevelFilter::TRACE) => "trace",
            Some(LevelFilter::DEBUG) => "debug",
            Some(LevelFilter::WARN) => "warn",
            Some(LevelFilter::ERROR) => "error",
            _ => "info",
        }
    }

    fn set(&self, level: &str) -> Result<(), String> {
        self.0.reload(level_of(level)).map_err(|error| error.to_string())
    }
}

/// Starts the log on standard error, as nsqd does.
pub fn start_log(settings: &Settings) -> LogLevel {
    let (level, handle) = reload::Layer::new(level_of(&settings.log_level));
    let registry = tracing_subscriber::registry().with(level);
    match (settings.log_format.as_str(), settings.log_prefix.as_str()) {
        ("json", _) => registry.with(fmt::layer().with_writer(std::io::stderr).json()).init(),
        (_, "") => registry.with(fmt::layer().with_writer(std::io::stderr).with_ansi(false)).init(),
        (_, prefix) => {
            let prefix = prefix.to_owned();
            registry.with(fmt::layer().with_writer(move || Prefixed::new(&prefix)).with_ansi(false)).init();
        }
    }
    LogLevel(handle)
}

pub fn level_of(level: &str) -> LevelFilter {
    match level {
        "trace" => LevelFilter::TRACE,
        "debug" => LevelFilter::DEBUG,
        "warn" => LevelFilter::WARN,
        "error" | "fatal" => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    }
}

/// Takes the log level of the config file, and logs its other changes. `asked`: the present values of flags and file; `None`: there is
/// no file.
pub fn config(asked: Option<Result<LoadedSettings, String>>, in_force: &mut Settings, level: &LogLevel) {
    let asked = match asked {
        None => return tracing::info!("no --config file was given: the log level stays {}", in_force.log_level),
        Some(Err(error)) => {
            return error.lines().for_each(|line| tracing::error!("the config file changes nothing: {line}"));
        }
        Some(Ok(asked)) => asked.settings,
    };
    let (old, new) = (in_force.log_level.clone(), asked.log_level.clone());
    let waiting = in_force.differences(&asked).into_iter().filter(|name| *name != "log-level").collect::<Vec<_>>().join(", ");
    // Said while the level is the one of the two that writes more.
    let say = || match old == new {
        true => tracing::info!("the config file was read: log-level is {new}, as before"),
        false => tracing::info!("the config file was read: log-level is {new}, and was {old}"),
    };
    let is_quieter = level_of(&new) <= level_of(&old);
    if is_quieter {
        say();
    }
    if !waiting.is_empty() {
        tracing::warn!("the config file changes settings that take effect at the next startup: {waiting}");
    }
    if let Err(error) = level.0.reload(level_of(&new)) {
        return tracing::error!("the log level stays {old}: {error}");
    }
    in_force.log_level = new.clone();
    if !is_quieter {
        say();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringmq::config::Notes;

    #[test]
    fn the_log_level_is_taken_and_the_rest_waits() {
        let (_layer, handle) = reload::Layer::<LevelFilter, Registry>::new(LevelFilter::INFO);
        let level = LogLevel(handle);
        let mut in_force = Settings::default();
        let asked = |log_level: &str| {
            let settings = Settings { log_level: log_level.into(), max_rdy_count: 7, ..Settings::default() };
            Some(Ok(LoadedSettings { settings, notes: Notes::default() }))
        };
        for (given, filter) in [("debug", LevelFilter::DEBUG), ("fatal", LevelFilter::ERROR), ("info", LevelFilter::INFO)] {
            config(asked(given), &mut in_force, &level);
            assert_eq!((in_force.log_level.as_str(), level.0.clone_current()), (given, Some(filter)));
        }
        config(Some(Err("it is not valid".into())), &mut in_force, &level);
        config(None, &mut in_force, &level);
        assert_eq!((level.0.clone_current(), in_force.max_rdy_count), (Some(LevelFilter::INFO), 2500));
    }
}

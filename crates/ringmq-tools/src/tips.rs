//! The tips of clap below an error, where they help.

use clap::error::{ContextKind, ContextValue};

/// Drops the tips of clap that are unlike the written flag (`--node-id` for `--nope`).
pub fn without_far_tips(mut error: clap::Error) -> clap::Error {
    let is_far = |written: Option<&ContextValue>, tip: Option<&ContextValue>| {
        let (Some(ContextValue::String(written)), Some(tip)) = (written, tip) else { return false };
        let tips = match tip {
            ContextValue::String(tip) => std::slice::from_ref(tip),
            ContextValue::Strings(tips) => tips,
            _ => return false,
        };
        let name = |text: &str| text.trim_start_matches('-').to_owned();
        let written = name(written.split('=').next().unwrap_or_default());
        !tips.iter().any(|tip| strsim::damerau_levenshtein(&written, &name(tip)) <= (written.len() / 3).max(1))
    };
    for (written, tip) in
        [(ContextKind::InvalidArg, ContextKind::SuggestedArg), (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand)]
    {
        if is_far(error.get(written), error.get(tip)) {
            error.remove(tip);
        }
    }
    // Says that a flag can be passed as a value, which no command here has a use for.
    error.remove(ContextKind::Suggested);
    error
}

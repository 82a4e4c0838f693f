//! Turn bytes into commands and replies into bytes. Pure.

pub mod frame;
pub mod input;
mod metadata;
pub mod native;
pub mod nsq;
pub mod output;
pub mod peer;

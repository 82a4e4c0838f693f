//! Turn bytes into commands and replies into bytes. Pure.

pub mod native;
pub mod nsq;

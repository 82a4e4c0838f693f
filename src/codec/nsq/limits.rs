//! What the protocol allows and tells clients, taken from the settings once and shared by every session.

use crate::config::Settings;
use crate::transport::Terms;

#[derive(Clone, Debug)]
pub struct Limits {
    /// Told in the answer to IDENTIFY.
    pub version: String,
    pub max_msg_size: usize,
    pub max_body_size: usize,
    pub max_rdy_count: u32,
    pub msg_timeout_ms: u64,
    pub max_msg_timeout_ms: u64,
    pub max_req_timeout_ms: u64,
    /// What a client has that asks for none.
    pub heartbeat_interval_ms: u64,
    pub max_heartbeat_interval_ms: u64,
    pub max_output_buffer_size: u64,
    /// What a client has that asks for none.
    pub output_buffer_timeout_ms: u64,
    pub min_output_buffer_timeout_ms: u64,
    pub max_output_buffer_timeout_ms: u64,
    /// What a client gets that asks for TLS; `None`: nobody does. The shard has it from whoever read the files.
    pub tls: Option<Terms>,
    pub snappy: bool,
    pub deflate: bool,
    pub max_deflate_level: u8,
    /// Consumers of a channel; 0: no limit.
    pub max_channel_consumers: u64,
    /// A client has to say AUTH before it publishes or subscribes.
    pub auth_required: bool,
    /// A client has to have TLS before any command but IDENTIFY.
    pub tls_required: bool,
    /// Unsent bytes above which no further message is handed to a connection.
    pub output_full_bytes: usize,
    /// Unsent bytes above which nothing more is read from a connection: room for one message more than full, so that a
    /// consumer's FINs are read while its messages wait.
    pub output_stop_bytes: usize,
    /// Replies that may be outstanding before nothing more is read.
    pub replies_max: usize,
    /// Bytes that are missing of a body from which on they are received to where they stay.
    pub in_place_min: usize,
    /// The native port has no TLS; with it, what comes is decrypted first.
    pub native_is_plain: bool,
}

const OUTPUT_FULL_BYTES: usize = 256 * 1024;
const REPLIES_MAX: usize = 8192;

impl From<&Settings> for Limits {
    fn from(s: &Settings) -> Self {
        // Sizes on the wire are signed 32 bits.
        let size = |bytes: u64| bytes.min(i32::MAX as u64) as usize;
        let max_msg_size = size(s.max_msg_size);
        Limits {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            max_msg_size,
            max_body_size: size(s.max_body_size),
            max_rdy_count: u32::try_from(s.max_rdy_count).unwrap_or(u32::MAX),
            msg_timeout_ms: s.msg_timeout_ms,
            max_msg_timeout_ms: s.max_msg_timeout_ms,
            max_req_timeout_ms: s.max_req_timeout_ms,
            heartbeat_interval_ms: (s.client_timeout_ms / 2).max(1),
            max_heartbeat_interval_ms: s.max_heartbeat_interval_ms,
            max_output_buffer_size: s.max_output_buffer_size,
            output_buffer_timeout_ms: s.output_buffer_timeout_ms,
            min_output_buffer_timeout_ms: s.min_output_buffer_timeout_ms,
            max_output_buffer_timeout_ms: s.max_output_buffer_timeout_ms,
            tls: None,
            snappy: s.snappy,
            deflate: s.deflate,
            max_deflate_level: s.max_deflate_level as u8,
            max_channel_consumers: s.max_channel_consumers,
            auth_required: !s.auth_http_address.is_empty(),
            tls_required: s.is_tls_required(),
            output_full_bytes: OUTPUT_FULL_BYTES,
            output_stop_bytes: 2 * OUTPUT_FULL_BYTES + max_msg_size,
            replies_max: REPLIES_MAX,
            in_place_min: size(s.receive_in_place_bytes),
            native_is_plain: s.native_tls_cert.is_empty(),
        }
    }
}

//! Limits of the protocol, from the settings.

use crate::codec::nsq::{Limits, NSQ_VERSION};
use crate::config::Settings;

const OUTPUT_FULL_BYTES: usize = 256 * 1024;

const REPLIES_MAX: usize = 8192;

impl From<&Settings> for Limits {
    fn from(s: &Settings) -> Self {
        // Sizes on the wire are signed 32 bits.
        let size = |bytes: u64| bytes.min(i32::MAX as u64) as usize;
        let max_msg_size = size(s.max_msg_size);
        Limits {
            // Of nsqd, since clients decide by it: nsqjs sends RDY again and again to an nsqd before 0.3.0.
            version: NSQ_VERSION.to_owned(),
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

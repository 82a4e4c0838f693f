//! Failing disks.

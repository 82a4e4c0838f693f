//! Anonymous pages: zeroed, page-aligned, touched only when used.

use std::io;

pub(super) struct Pages {
    start: *mut u8,
    bytes: usize,
}

impl Pages {
    pub fn new(bytes: usize) -> io::Result<Pages> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, nothing that exists is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Pages { start: start.cast(), bytes })
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; its users have let go of it (Net::shutdown).
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

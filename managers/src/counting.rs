//! Counts the bytes that a process really allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes that this thread has allocated minus those it has freed.
    static THREAD: Cell<i64> = const { Cell::new(0) };
}

/// The system allocator with counters, so that "planned equals allocated" compares the plan with something that did
/// not come from the plan.
///
/// A binary or test installs it with `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`.
/// Without that, every counter is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

impl CountingAllocator {
    /// Bytes allocated now; `None` if the allocator is not installed.
    pub fn current() -> Option<u64> {
        Some(CURRENT.load(Ordering::Relaxed) as u64).filter(|&bytes| bytes > 0)
    }

    /// The most bytes allocated at once since the last [`CountingAllocator::reset_peak`].
    pub fn peak() -> Option<u64> {
        Self::current().map(|_| PEAK.load(Ordering::Relaxed) as u64)
    }

    /// Starts a new peak at what is allocated now.
    pub fn reset_peak() {
        PEAK.store(CURRENT.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// What `body` returns, and the bytes that this thread allocated in it minus those that it freed.
    ///
    /// Other threads do not disturb the count, so that it is exact.
    pub fn measure<R>(body: impl FnOnce() -> R) -> (R, Option<i64>) {
        let before = THREAD.get();
        let result = body();
        let bytes = THREAD.get() - before;
        (result, Self::current().map(|_| bytes))
    }

    /// Gives memory that was freed back to the system, where its allocator keeps it: after a load, whose temporaries
    /// are as large as what stays.
    pub fn trim() {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            unsafe extern "C" {
                /// Of glibc.
                fn malloc_trim(pad: usize) -> i32;
            }
            // SAFETY: touches only memory that nobody has allocated, under the allocator's own locks.
            unsafe { malloc_trim(0) };
        }
    }

    fn add(bytes: usize) {
        let current = CURRENT.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(current, Ordering::Relaxed);
        // Fails only while the thread is being torn down, when nobody measures.
        let _ = THREAD.try_with(|thread| thread.set(thread.get() + bytes as i64));
    }

    fn subtract(bytes: usize) {
        CURRENT.fetch_sub(bytes, Ordering::Relaxed);
        let _ = THREAD.try_with(|thread| thread.set(thread.get() - bytes as i64));
    }
}

// SAFETY: every call is passed on to the system allocator unchanged; counting allocates nothing, since the
// thread-local is a constant-initialised `Cell` without a destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout` is the system allocator's.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            Self::add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            Self::add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from the system allocator with this layout, since all of ours do.
        unsafe { System.dealloc(pointer, layout) };
        Self::subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`; the caller promises that `new_size` is valid.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            Self::subtract(layout.size());
            Self::add(new_size);
        }
        moved
    }
}

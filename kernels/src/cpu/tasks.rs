//! Parallel sections of the CPU's ops.
//!
//! Subnormal numbers count as zeros inside of them. Arithmetic on such numbers costs some processors a hundred cycles,
//! and a decaying state passes through them.

use rayon::prelude::*;

/// Runs `body` on each of `tasks`, on all threads. A thread that has none left takes half of those of another down to a single
/// one, unless a least number at a time is stated: by itself rayon lets the last eighth of a product run on one thread.
#[inline(always)]
pub(super) fn for_each<T: IndexedParallelIterator>(tasks: T, body: impl Fn(T::Item) + Send + Sync) {
    tasks.with_max_len(1).for_each(|task| {
        let _flushed = FlushSubnormals::new();
        body(task);
    });
}

/// While it lives, this thread reads and writes subnormal f32 and f64 numbers as zeros. Its former mode comes back with
/// the end of the scope, a panic's included.
struct FlushSubnormals {
    before: mode::Word,
}

impl FlushSubnormals {
    fn new() -> Self {
        let before = mode::get();
        mode::set(before | mode::FLUSH);
        Self { before }
    }
}

impl Drop for FlushSubnormals {
    fn drop(&mut self) {
        mode::set(self.before);
    }
}

/// The thread's floating-point mode.
///
/// The compiler takes it for the default one. It evaluates constants in that mode and may move arithmetic, though no
/// access to memory, past a change of it; both alter what becomes of a subnormal number at most. No bit that masks
/// exceptions or chooses a rounding is touched.
#[cfg(target_arch = "x86_64")]
mod mode {
    use std::arch::asm;

    pub(super) type Word = u32;
    /// Flush to zero, and denormals are zeros. Every x86-64 has both.
    pub(super) const FLUSH: Word = 1 << 15 | 1 << 6;

    pub(super) fn get() -> Word {
        let mut word: Word = 0;
        // SAFETY: writes the 32 bits of MXCSR to a variable of that size.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn set(word: Word) {
        // SAFETY: reads a variable of 32 bits whose reserved bits are those that `get` gave.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

/// As on x86-64, in FPCR.
#[cfg(target_arch = "aarch64")]
mod mode {
    use std::arch::asm;

    pub(super) type Word = u64;
    /// Flush to zero, inputs and outputs.
    pub(super) const FLUSH: Word = 1 << 24;

    pub(super) fn get() -> Word {
        let word: Word;
        // SAFETY: reads a register that every program may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn set(word: Word) {
        // SAFETY: writes a register that every program may write, with reserved bits that `get` gave.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// Other processors keep their mode.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod mode {
    pub(super) type Word = u8;
    pub(super) const FLUSH: Word = 0;

    pub(super) fn get() -> Word {
        0
    }

    pub(super) fn set(_: Word) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Half of the smallest normal number, computed now.
    fn half_of_the_smallest() -> f32 {
        black_box(f32::MIN_POSITIVE) * black_box(0.5)
    }

    #[test]
    fn tasks_flush_and_threads_do_not() {
        let kept = AtomicUsize::new(0);
        let before = mode::get();
        for_each((0..1000).into_par_iter(), |_| {
            kept.fetch_add(usize::from(half_of_the_smallest() != 0.0), Ordering::Relaxed);
        });
        assert_eq!(kept.into_inner(), 0, "a task kept a subnormal number");
        assert_eq!(mode::get() & mode::FLUSH, before & mode::FLUSH);
        assert!(half_of_the_smallest() > 0.0);
        assert!(rayon::broadcast(|_| half_of_the_smallest()).into_iter().all(|half| half > 0.0));
    }

    #[test]
    fn a_panic_gives_the_mode_back() {
        let fails = || for_each((0..100).into_par_iter(), |task| assert!(task < 50, "on purpose"));
        catch_unwind(AssertUnwindSafe(fails)).unwrap_err();
        assert!(half_of_the_smallest() > 0.0);
        assert!(rayon::broadcast(|_| half_of_the_smallest()).into_iter().all(|half| half > 0.0));
    }

    #[test]
    fn a_section_inside_of_a_section_leaves_the_outer_one_as_it_is() {
        for_each((0..8).into_par_iter(), |_| {
            for_each((0..8).into_par_iter(), |_| {});
            assert_eq!(half_of_the_smallest(), 0.0);
        });
    }
}

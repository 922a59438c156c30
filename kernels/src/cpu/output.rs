//! Memory that parallel tasks write in pieces of their own.

use crate::error::Result;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, Shape, Storage, Tensor};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicUsize, Ordering};

/// What an op returns, while parallel tasks write it. Nobody clears it as a whole: each task clears its own pieces,
/// where they lie in a near cache by the time that they are filled.
///
/// It is the parts of a vector: a vector itself would be borrowed as a whole while pieces of it are lent.
pub(super) struct Output {
    start: *mut MaybeUninit<f32>,
    len: usize,
    capacity: usize,
    /// Elements handed out so far.
    #[cfg(debug_assertions)]
    written: AtomicUsize,
}

// SAFETY: it owns what the pointer leads to, and `piece` and `write` oblige their callers to keep apart.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// From this size on an output goes past the caches: no cache would still hold its start at its end.
    const STREAMED_BYTES: usize = 32 << 20;

    pub(super) fn new(len: usize) -> Self {
        let mut data = ManuallyDrop::new(Vec::with_capacity(len));
        Self {
            start: data.as_mut_ptr(),
            len,
            capacity: data.capacity(),
            #[cfg(debug_assertions)]
            written: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The elements in `range`, cleared.
    ///
    /// # Safety
    /// No other piece may overlap `range`, then or later.
    #[allow(clippy::mut_from_ref, reason = "handing out disjoint pieces is what the type is for")]
    pub(super) unsafe fn piece(&self, range: Range<usize>) -> &mut [f32] {
        // SAFETY: the caller's promise.
        let piece = unsafe { self.uninit(range) };
        piece.fill(MaybeUninit::new(0.0));
        // SAFETY: the same elements, just filled.
        unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr().cast(), piece.len()) }
    }

    /// Leaves zeros in the rows of padding sequences, `width` elements each, which nobody else writes.
    pub(super) fn clear_padding(&self, rows: impl Iterator<Item = Range<usize>>, width: usize) {
        for rows in rows {
            // SAFETY: sequences have distinct rows, and those of padding are nobody else's.
            unsafe { self.piece(rows.start * width..rows.end * width) };
        }
    }

    /// Writes `values` from element `at` on.
    ///
    /// # Safety
    /// As for [`piece`](Self::piece), and the thread calls [`settle`](Self::settle) before its task ends.
    pub(super) unsafe fn write(&self, at: usize, values: &[f32]) {
        // SAFETY: the caller's promise.
        let piece = unsafe { self.uninit(at..at + values.len()) };
        let values = uninit(values);
        if self.len * size_of::<f32>() >= Self::STREAMED_BYTES {
            stream(piece, values);
        } else {
            piece.copy_from_slice(values);
        }
    }

    /// Writes `values` from element `at` on, which stay near.
    ///
    /// # Safety
    /// As for [`piece`](Self::piece).
    pub(super) unsafe fn keep(&self, at: usize, values: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.uninit(at..at + values.len()) }.copy_from_slice(uninit(values));
    }

    /// Makes what this thread has written visible before whatever tells other threads that its task is done.
    pub(super) fn settle() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has this instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }

    #[allow(clippy::mut_from_ref, reason = "handing out disjoint pieces is what the type is for")]
    unsafe fn uninit(&self, range: Range<usize>) -> &mut [MaybeUninit<f32>] {
        assert!(range.start <= range.end && range.end <= self.len);
        #[cfg(debug_assertions)]
        self.written.fetch_add(range.len(), Ordering::Relaxed);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The tensor, in the dtype of `like`, on the CPU.
    ///
    /// # Safety
    /// Every element has been in a piece or has been written.
    pub(super) unsafe fn into_tensor(self, shape: impl Into<Shape>, like: &Tensor) -> Result<Tensor> {
        #[cfg(debug_assertions)]
        assert_eq!(self.written.load(Ordering::Relaxed), self.len, "each element is written once");
        let parts = ManuallyDrop::new(self);
        // SAFETY: the parts of a vector of the same layout, all of whose elements are initialised by the caller's promise.
        let data = unsafe { Vec::from_raw_parts(parts.start.cast::<f32>(), parts.len, parts.capacity) };
        let shape = shape.into();
        assert_eq!(shape.elem_count(), data.len());
        let storage = Storage::Cpu(CpuStorage::F32(data));
        Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false).to_dtype(like.dtype())?)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: the parts of a vector whose elements need no drop; its pieces are no longer than a borrow of this.
        drop(unsafe { Vec::from_raw_parts(self.start, 0, self.capacity) });
    }
}

/// Elements as such that need not be initialised.
fn uninit(values: &[f32]) -> &[MaybeUninit<f32>] {
    // SAFETY: the same elements; nobody can write through what is returned.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

/// Copies without reading the lines that are overwritten, and without keeping them near.
fn stream(target: &mut [MaybeUninit<f32>], source: &[MaybeUninit<f32>]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128, _mm_loadu_ps, _mm_stream_ps};
        // SAFETY: neither type needs to be initialised.
        let (head, aligned, tail) = unsafe { target.align_to_mut::<MaybeUninit<__m128>>() };
        let (to_head, rest) = source.split_at(head.len());
        let (to_aligned, to_tail) = rest.split_at(4 * aligned.len());
        head.copy_from_slice(to_head);
        for (target, source) in aligned.iter_mut().zip(to_aligned.as_chunks::<4>().0) {
            // SAFETY: four elements on either side, the target aligned to all of them.
            unsafe { _mm_stream_ps(target.as_mut_ptr().cast(), _mm_loadu_ps(source.as_ptr().cast())) };
        }
        tail.copy_from_slice(to_tail);
    }
    #[cfg(not(target_arch = "x86_64"))]
    target.copy_from_slice(source);
}

/// One mutable slice handed out in pieces to parallel tasks.
pub(super) struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer stands for a `&mut [T]`, and `slice` obliges its callers to keep the pieces apart.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: as above; sharing the handle shares nothing but the right to ask for disjoint pieces.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    pub(super) fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), lifetime: PhantomData }
    }

    /// The elements in `range`.
    ///
    /// # Safety
    /// No other piece that is alive at the same time may overlap `range`.
    #[allow(clippy::mut_from_ref, reason = "handing out disjoint pieces is what the type is for")]
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

//! Typed access to the memory behind candle tensors on the CPU.

use crate::error::{KernelError, Result};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Shape, Storage, StorageRef, Tensor, WithDType};
use float8::F8E4M3;
use half::{bf16, f16};
use pulp::Simd;
use pulp::bytemuck::cast_slice_mut;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicUsize, Ordering};

/// An element type that a pool may have. Arithmetic is always done in f32.
pub(super) trait Element: WithDType + Send + Sync {
    /// The largest number of a type that needs scales.
    const LARGEST: f32;
    fn load(self) -> f32;
    fn store(value: f32) -> Self;
    /// A vector of the first elements.
    #[inline(always)]
    fn vector<S: Simd>(simd: S, stored: &[Self]) -> S::f32s {
        loaded(simd, stored)
    }
    /// The elements as bytes, where they are bytes.
    fn as_bytes(_: &[Self]) -> Option<&[u8]> {
        None
    }
    /// The elements as bytes, where they are bytes.
    fn as_bytes_mut(_: &mut [Self]) -> Option<&mut [u8]> {
        None
    }
    /// The elements as f32 without a copy, where they are f32.
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }
    /// The elements as f32 without a copy, where they are f32.
    fn as_f32_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
    fn slice_of(storage: &CpuStorage) -> Option<&[Self]>;
    fn slice_of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

macro_rules! element {
    ($type:ty, $variant:ident, $largest:expr, $load:expr, $store:expr $(, $identity:item)*) => {
        impl Element for $type {
            const LARGEST: f32 = $largest;
            #[inline(always)]
            fn load(self) -> f32 {
                $load(self)
            }
            #[inline(always)]
            fn store(value: f32) -> Self {
                $store(value)
            }
            fn slice_of(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$variant(data) => Some(data),
                    _ => None,
                }
            }
            fn slice_of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
                match storage {
                    CpuStorage::$variant(data) => Some(data),
                    _ => None,
                }
            }
            $($identity)*
        }
    };
}

element!(
    f32,
    F32,
    f32::MAX,
    |value| value,
    |value| value,
    #[inline(always)]
    fn vector<S: Simd>(_: S, stored: &[f32]) -> S::f32s {
        S::as_simd_f32s(stored).0[0]
    },
    #[inline(always)]
    fn as_f32(data: &[Self]) -> Option<&[f32]> {
        Some(data)
    },
    #[inline(always)]
    fn as_f32_mut(data: &mut [Self]) -> Option<&mut [f32]> {
        Some(data)
    }
);
element!(
    f16,
    F16,
    f16::MAX.to_f32_const(),
    f16_value,
    f16::from_f32,
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn vector<S: Simd>(simd: S, stored: &[f16]) -> S::f32s {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps};
        let from: *const f16 = stored[..S::F32_LANES].as_ptr();
        // SAFETY: sixteen lanes are those of AVX-512, which has these, eight those of AVX2 with F16C, and as many numbers are
        // there. The conversion keeps subnormal numbers in every mode.
        unsafe {
            match S::F32_LANES {
                16 => std::mem::transmute_copy(&_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))),
                8 => std::mem::transmute_copy(&super::simd::eight_halves(from.cast())),
                _ => loaded(simd, stored),
            }
        }
    }
);
element!(bf16, BF16, bf16::MAX.to_f32_const(), bf16_value, bf16::from_f32);
element!(
    F8E4M3,
    F8E4M3,
    448.0,
    f8_value,
    F8E4M3::from_f32,
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn vector<S: Simd>(simd: S, stored: &[F8E4M3]) -> S::f32s {
        use std::arch::x86_64::*;
        if !matches!(S::F32_LANES, 8 | 16) {
            return loaded(simd, stored);
        }
        let from: *const F8E4M3 = stored[..S::F32_LANES].as_ptr();
        // With four bits of exponent in five a half is 2^8 times too small, and its largest number stands for none.
        if S::F32_LANES == 16 {
            // SAFETY: sixteen lanes are those of AVX-512, and sixteen numbers are there.
            return unsafe {
                let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
                let half = _mm256_and_si256(wide, _mm256_set1_epi16(0xbf80_u16 as i16));
                let none = _mm256_cmpeq_epi16_mask(_mm256_add_epi16(half, half), _mm256_set1_epi16(0x7f00));
                let half = _mm256_mask_mov_epi16(half, none, _mm256_set1_epi16(0x7e00));
                std::mem::transmute_copy(&_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0)))
            };
        }
        // SAFETY: eight lanes are those of AVX2 with F16C, and eight numbers are there.
        unsafe {
            let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())));
            let magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x3f80));
            let none = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
            let half = _mm_or_si128(
                _mm_and_si128(wide, _mm_set1_epi16(0xbf80_u16 as i16)),
                _mm_and_si128(none, _mm_set1_epi16(0x7e00)),
            );
            std::mem::transmute_copy(&_mm256_mul_ps(super::simd::widened_halves(half), _mm256_set1_ps(256.0)))
        }
    }
);
// int8: candle has no signed 8-bit type, so the bits lie in unsigned ones.
element!(
    u8,
    U8,
    127.0,
    |bits: u8| f32::from(bits as i8),
    |value: f32| value.round_ties_even().clamp(-128.0, 127.0) as i8 as u8,
    #[inline(always)]
    fn as_bytes(data: &[Self]) -> Option<&[u8]> {
        Some(data)
    },
    #[inline(always)]
    fn as_bytes_mut(data: &mut [Self]) -> Option<&mut [u8]> {
        Some(data)
    }
);

/// A vector of elements that are loaded one by one, which compilers make one step of.
#[inline(always)]
fn loaded<S: Simd, T: Element>(simd: S, stored: &[T]) -> S::f32s {
    let mut vector = simd.splat_f32s(0.0);
    let wide: &mut [f32] = cast_slice_mut(std::slice::from_mut(&mut vector));
    for (wide, stored) in wide.iter_mut().zip(&stored[..S::F32_LANES]) {
        *wide = stored.load();
    }
    vector
}

/// Without a branch or a table, so that loops over it vectorise.
#[inline(always)]
fn bf16_value(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// All bits, or none. A compiler may make branches of a `match`, and then loops over it do not vectorise.
#[inline(always)]
fn mask(condition: bool) -> u32 {
    u32::from(condition).wrapping_neg()
}

/// As [`bf16_value`]. No number on the way is subnormal, since those may be read as zeros.
#[inline(always)]
fn f16_value(value: f16) -> f32 {
    const EXPONENT: u32 = 0x1f << 23;
    // The exponent of f32 for that of f16, which is 112 less.
    const REBIAS: u32 = 112 << 23;
    let bits = u32::from(value.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let exponent = magnitude & EXPONENT;
    let normal = magnitude + REBIAS;
    let small = f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23);
    let large = normal + (REBIAS & mask(exponent == EXPONENT));
    let is_small = mask(exponent == 0);
    f32::from_bits(small.to_bits() & is_small | large & !is_small | (bits & 0x8000) << 16)
}

/// As [`f16_value`].
#[inline(always)]
fn f8_value(value: F8E4M3) -> f32 {
    let bits = u32::from(value.to_bits());
    let magnitude = bits & 0x7f;
    let normal = (magnitude << 20) + (120 << 23);
    let small = f32::from_bits(normal + (1 << 23)) - f32::from_bits(121 << 23);
    let large = normal | f32::NAN.to_bits() & mask(magnitude == 0x7f);
    let is_small = mask(magnitude < 8);
    f32::from_bits(small.to_bits() & is_small | large & !is_small | (bits & 0x80) << 24)
}

/// Runs `$body` with `$element` bound to the element type of a floating-point pool of dtype `$dtype`.
macro_rules! with_float_pool {
    ($op:expr, $dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $element = f32;
                $body
            }
            candle_core::DType::F16 => {
                type $element = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $element = half::bf16;
                $body
            }
            found => {
                Err($crate::error::KernelError::DType { op: $op, operand: "pool", found, expected: "f32, f16 or bf16" })
            }
        }
    };
}
pub(super) use with_float_pool;

/// As [`with_float_pool`], for KV pools, which may also be of 8-bit floats or int8.
macro_rules! with_kv_pool {
    ($op:expr, $dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F8E4M3 => {
                type $element = float8::F8E4M3;
                $body
            }
            candle_core::DType::U8 => {
                type $element = u8;
                $body
            }
            dtype => $crate::cpu::storage::with_float_pool!($op, dtype, $element => $body),
        }
    };
}
pub(super) use with_kv_pool;

/// Runs `body` on the elements of a contiguous pool, in place, and returns what it returns.
pub(super) fn with_pool_mut<T: Element, R>(
    op: &'static str,
    pool: &Tensor,
    body: impl FnOnce(&mut [T]) -> Result<R>,
) -> Result<R> {
    struct Op<F, R, T> {
        name: &'static str,
        body: RefCell<Option<F>>,
        result: RefCell<Option<Result<R>>>,
        element: PhantomData<T>,
    }
    impl<T: Element, R, F: FnOnce(&mut [T]) -> Result<R>> InplaceOp1 for Op<F, R, T> {
        fn name(&self) -> &'static str {
            self.name
        }
        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
            let Some(range) = contiguous(layout) else {
                candle_core::bail!("{}: the pool is not contiguous", self.name)
            };
            let Some(data) = T::slice_of_mut(storage) else {
                candle_core::bail!("{}: the pool is not {:?}", self.name, T::DTYPE)
            };
            let body = self.body.borrow_mut().take();
            *self.result.borrow_mut() = body.map(|body| body(&mut data[range]));
            Ok(())
        }
    }
    let inplace = Op { name: op, body: RefCell::new(Some(body)), result: RefCell::new(None), element: PhantomData };
    pool.inplace_op1(&inplace)?;
    inplace
        .result
        .into_inner()
        .unwrap_or_else(|| Err(KernelError::Argument { op, reason: "candle did not run the op".to_owned() }))
}

/// Runs `body` on the elements of a contiguous pool.
pub(super) fn with_pool<T: Element, R>(
    op: &'static str,
    pool: &Tensor,
    body: impl FnOnce(&[T]) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = pool.storage_and_layout();
    let data = match &*storage {
        Storage::Cpu(cpu) => T::slice_of(cpu),
        _ => None,
    };
    match (data, contiguous(layout)) {
        (Some(data), Some(range)) => body(&data[range]),
        _ => Err(KernelError::Argument {
            op,
            reason: format!("the pool is not a contiguous {:?} tensor on the CPU", T::DTYPE),
        }),
    }
}

fn contiguous(layout: &Layout) -> Option<Range<usize>> {
    layout.contiguous_offsets().map(|(start, end)| start..end)
}

/// An activation or parameter tensor as f32 rows: its first dimension counts rows, the others are one row.
///
/// A column slice of a wider f32 projection is read in place through its row stride; another dtype or a stranger
/// stride costs a copy.
pub(super) enum Input<'a> {
    Borrowed { storage: StorageRef<'a>, offset: usize, shape: RowShape },
    Owned { data: Vec<f32>, shape: RowShape },
}

/// Rows of equal width at equal distance.
#[derive(Clone, Copy)]
pub(super) struct RowShape {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) stride: usize,
}

/// Borrowed f32 rows.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    data: &'a [f32],
    shape: RowShape,
}

impl<'a> Input<'a> {
    /// Rows counted by the first dimension.
    pub(super) fn new(tensor: &'a Tensor) -> Result<Self> {
        let rows = tensor.dim(0)?;
        Self::with_rows(tensor, rows, &tensor.dims()[1..], &tensor.stride()[1..])
    }

    /// The whole tensor as one row.
    pub(super) fn flat(tensor: &'a Tensor) -> Result<Self> {
        Self::with_rows(tensor, 1, tensor.dims(), tensor.stride())
    }

    fn with_rows(tensor: &'a Tensor, rows: usize, dims: &[usize], strides: &[usize]) -> Result<Self> {
        let mut width = 1;
        let mut dense = true;
        for (&dim, &stride) in dims.iter().zip(strides).rev() {
            dense &= dim == 1 || stride == width;
            width *= dim;
        }
        let stride = match tensor.stride() {
            [first, ..] if rows > 1 => *first,
            _ => width,
        };
        let (storage, layout) = tensor.storage_and_layout();
        if dense && matches!(&*storage, Storage::Cpu(CpuStorage::F32(_))) {
            return Ok(Self::Borrowed {
                storage,
                offset: layout.start_offset(),
                shape: RowShape { rows, width, stride },
            });
        }
        drop(storage);
        Ok(Self::Owned {
            data: tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?,
            shape: RowShape { rows, width, stride: width },
        })
    }

    /// An optional parameter vector as one row.
    pub(super) fn optional_flat(tensor: Option<&'a Tensor>) -> Result<Option<Self>> {
        tensor.map(Self::flat).transpose()
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        match self {
            Self::Borrowed { storage, offset, shape } => {
                let data = match &**storage {
                    Storage::Cpu(CpuStorage::F32(data)) => &data[*offset..],
                    // `new` borrows nothing else, and a storage never changes its kind.
                    _ => &[],
                };
                Rows { data, shape: *shape }
            }
            Self::Owned { data, shape } => Rows { data, shape: *shape },
        }
    }
}

impl<'a> Rows<'a> {
    pub(super) fn row(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.shape.stride..][..self.shape.width]
    }

    pub(super) fn width(&self) -> usize {
        self.shape.width
    }

    pub(super) fn len(&self) -> usize {
        self.shape.rows
    }

    pub(super) fn stride(&self) -> usize {
        self.shape.stride
    }

    /// Row `index` and everything behind it, for products that walk the stride themselves.
    pub(super) fn row_and_after(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.shape.stride..]
    }
}

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
        // SAFETY: any element may stand in memory that need not be initialised.
        let values = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) };
        if self.len * size_of::<f32>() >= Self::STREAMED_BYTES {
            stream(piece, values);
        } else {
            piece.copy_from_slice(values);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of 16 and of 8 bits.
    #[test]
    fn narrow_numbers_load_as_what_they_are() {
        let same =
            |found: f32, expected: f32| found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(same(half.load(), half.to_f32()), "{bits:#x} of f16");
            assert!(same(brain.load(), brain.to_f32()), "{bits:#x} of bf16");
        }
        for bits in 0..=u8::MAX {
            let float = F8E4M3::from_bits(bits);
            assert!(same(float.load(), float.to_f32()), "{bits:#x} of fp8");
        }
    }
}

//! Typed access to the memory behind candle tensors on the CPU.

use super::element::Element;
use crate::error::{KernelError, Result};
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Storage, StorageRef, Tensor};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

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

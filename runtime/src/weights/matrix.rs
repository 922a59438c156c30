//! Weights that products read.

use cacheplan_kernels::{Numbers, Run, StoredMatrix};
use candle_core::{DType, Tensor};

/// A weight `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub(crate) enum Matrix {
    /// In the dtype of arithmetic, or in 16 bits.
    Dense(Tensor),
    /// In the blocks of a file, on the CPU; its rows are those of one matrix after the other.
    Stored(Vec<StoredMatrix>),
    /// One that several share, with a change of its own.
    Changed(Box<Matrix>, LowRank),
}

/// What is added to a weight: for each group of its rows, one after the other, a product of two matrices, `[rank, inputs]` and
/// `[rows, rank]`.
#[derive(Clone, Debug)]
pub(crate) struct LowRank(pub(crate) Vec<[Matrix; 2]>);

impl LowRank {
    /// Of rows `[rows, inputs]`.
    fn product(&self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        let parts = self.0.iter().map(|[down, up]| up.product(on, &down.product(on, x)?));
        Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 1)
    }

    fn computed(&self) -> candle_core::Result<Tensor> {
        let parts = self.0.iter().map(|[down, up]| up.computed()?.matmul(&down.computed()?));
        Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)
    }
}

impl Matrix {
    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Dense(weight) => weight.dims()[0],
            Self::Stored(parts) => parts.iter().map(StoredMatrix::rows).sum(),
            Self::Changed(shared, _) => shared.rows(),
        }
    }

    /// `x wᵀ` of rows `[rows, inputs]`.
    pub(crate) fn product(&self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(match self {
            Self::Dense(weight) => cacheplan_kernels::linear(on, x, weight)?,
            Self::Stored(parts) => StoredMatrix::linear(x, parts)?,
            Self::Changed(shared, change) => (shared.product(on, x)? + change.product(on, x)?)?,
        })
    }

    /// The rows of several, one after the other.
    pub(crate) fn stacked<'a>(parts: impl Iterator<Item = &'a Self> + Clone) -> candle_core::Result<Self> {
        let mut first = parts.clone();
        if let (Some(only), None) = (first.next(), first.next()) {
            return Ok(only.clone());
        }
        let stored = |part: &'a Self| match part {
            Self::Stored(parts) => Some(parts.as_slice()),
            Self::Dense(_) | Self::Changed(..) => None,
        };
        if let Some(parts) = parts.clone().map(stored).collect::<Option<Vec<_>>>() {
            return Ok(Self::Stored(parts.concat()));
        }
        let dense = |part: &Self| match part {
            Self::Dense(weight) => Ok(weight.clone()),
            Self::Stored(_) | Self::Changed(..) => part.computed(),
        };
        let mut parts: Vec<Tensor> = parts.map(dense).collect::<Result<_, _>>()?;
        if parts.iter().any(|part| part.dtype() != parts[0].dtype()) {
            parts = parts.iter().map(computed).collect::<Result<_, _>>()?;
        }
        Ok(Self::Dense(Tensor::cat(&parts, 0)?))
    }

    /// Its numbers in the dtype of arithmetic, for whoever does more with them than a product.
    pub(crate) fn computed(&self) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(weight) => computed(weight),
            Self::Stored(parts) => {
                let parts: Vec<Tensor> = parts.iter().map(StoredMatrix::numbers).collect::<Result<_, _>>()?;
                Tensor::cat(&parts, 0)
            }
            Self::Changed(shared, change) => shared.computed()? + change.computed()?,
        }
    }

    /// The rows of a step's tokens, in the dtype of arithmetic.
    pub(crate) fn embed(&self, on: &Run<'_>, tokens: Numbers<'_, u32>) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(weight) => computed(&weight.index_select(&on.tensor(tokens)?, 0)?),
            Self::Stored(_) | Self::Changed(..) => {
                self.select(&tokens.iter().map(|&token| token as usize).collect::<Vec<_>>())?.computed()
            }
        }
    }

    /// Some of the rows, in the order given, as they are stored.
    pub(crate) fn select(&self, rows: &[usize]) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Stored(parts) if parts.len() == 1 => Self::Stored(vec![parts[0].select(rows)?]),
            Self::Stored(_) | Self::Changed(..) => Self::Dense(self.computed()?).select(rows)?,
            Self::Dense(weight) => {
                let indices = rows.iter().map(|&row| row as u32).collect();
                Self::Dense(weight.index_select(&Tensor::from_vec(indices, rows.len(), weight.device())?, 0)?)
            }
        })
    }
}

/// Numbers of a weight in the dtype of arithmetic.
fn computed(weight: &Tensor) -> candle_core::Result<Tensor> {
    if weight.device().is_cpu() { weight.to_dtype(DType::F32) } else { Ok(weight.clone()) }
}

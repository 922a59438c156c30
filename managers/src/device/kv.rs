//! The paged pools: keys, values and latents in blocks.

use cacheplan_handlers::{DType, KvLayout, ResourceHandler};
use cacheplan_kernels::{Backend, GroupFormat, KvLayerView, KvQuant, KvScales};
use cacheplan_planner::{CachePlan, Member};
use candle_core::Tensor;

use super::pool::PoolTensor;
use crate::book::{BlockId, Indexing, Layout, PagedSpec, PoolIndex};
use crate::device::error::Result;
use crate::{BookError, ManagerError};

/// Owns the paged pools of a plan; a block of a pool holds the same tokens for all its layers.
#[derive(Debug)]
pub struct KvCacheManager {
    /// By the number that [`Indexing::Blocks`] gives.
    pools: Vec<KvPool>,
}

#[derive(Debug)]
struct KvPool {
    spec: PagedSpec,
    tensor: PoolTensor,
    members: Vec<KvMember>,
}

#[derive(Debug)]
struct KvMember {
    dtype: DType,
    view: KvLayerView,
}

/// 8-bit rows are stored as they are.
const UNSCALED: KvScales = KvScales { k: 1.0, v: 1.0 };

impl KvMember {
    fn quant(&self) -> Option<KvQuant<'static>> {
        match self.dtype {
            DType::F8E4m3 | DType::Int8 => Some(UNSCALED.into()),
            DType::Int8PerTokenHead => Some(KvQuant::Grouped(GroupFormat::Int8)),
            DType::F8E5m2 => Some(KvQuant::Grouped(GroupFormat::F8E5m2)),
            DType::Q8_0 => Some(KvQuant::Grouped(GroupFormat::Q8_0)),
            DType::Q4_0 => Some(KvQuant::Grouped(GroupFormat::Q4_0)),
            DType::Mxfp4 => Some(KvQuant::Grouped(GroupFormat::Mxfp4)),
            DType::Nvfp4 => Some(KvQuant::Grouped(GroupFormat::Nvfp4)),
            DType::F32
            | DType::F16
            | DType::Bf16
            | DType::Int32
            | DType::Mxfp8
            | DType::Q4_1
            | DType::Q5_0
            | DType::Q5_1
            | DType::Iq4Nl => None,
        }
    }
}

/// One layer's part of a paged pool, borrowed for a kernel call.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'a> {
    /// The whole pool `[num_blocks, block_elems]`.
    pub pool: &'a Tensor,
    /// Where the layer lies in it.
    pub view: KvLayerView,
    /// Which entry of [`crate::book::StepMetadata::pools`] belongs to it.
    pub paged: usize,
    /// How an 8-bit or 4-bit pool stores rows; none for wider dtypes, nor for those that no kernel reads.
    pub quant: Option<KvQuant<'static>>,
}

/// A sequence's keys and values of one layer as dense tensors.
#[derive(Clone, Debug)]
pub struct DenseKv {
    /// The token of the first row: 0 unless a sliding window has released earlier ones.
    pub first_token: usize,
    /// `[tokens, num_kv_heads, head_dim]` in the pool's dtype; the latent of an MLA layer.
    pub keys: Tensor,
    /// The same for values; absent if the layer has one tensor.
    pub values: Option<Tensor>,
}

impl KvCacheManager {
    pub(crate) fn allocate(plan: &CachePlan, layout: &Layout, on: &Backend) -> Result<Self> {
        let mut pools = Vec::with_capacity(layout.paged.len());
        for spec in &layout.paged {
            let pool = &plan.pools[spec.pool];
            let tensor = PoolTensor::allocate(pool, on)?;
            let mut members = Vec::with_capacity(pool.members.len());
            for member in &pool.members {
                let resource = plan
                    .resource(&member.resource)
                    .ok_or_else(|| ManagerError::UnknownResource(member.resource.clone()))?;
                let view = view(&resource.handler, member, &tensor, spec)?;
                members.push(KvMember { dtype: resource.handler.dtype(), view });
            }
            pools.push(KvPool { spec: spec.clone(), tensor, members });
        }
        Ok(Self { pools })
    }

    /// Counts the pools.
    pub fn num_pools(&self) -> usize {
        self.pools.len()
    }

    pub(crate) fn layer(&self, place: PoolIndex) -> Result<KvLayer<'_>> {
        let (paged, pool, member) = self.member(place)?;
        Ok(KvLayer { pool: &pool.tensor.tensor, view: member.view, paged, quant: member.quant() })
    }

    /// The first `tokens` tokens of a table as dense tensors.
    pub(crate) fn read(&self, place: PoolIndex, table: &[i32], tokens: u32) -> Result<DenseKv> {
        let (_, pool, member) = self.member(place)?;
        let (spec, view) = (&pool.spec, member.view);
        let used = &table[..spec.blocks_for(tokens) as usize];
        let blocks: Vec<u32> = used.iter().filter_map(|&block| u32::try_from(block).ok()).collect();
        let released = used.len() - blocks.len();
        let per_block = view.tokens_per_block;
        let first = released * per_block;
        let entries = (spec.entries(tokens) as usize).saturating_sub(first);
        let (kv, heads, dim) = (view.kv_factor, view.num_kv_heads, view.head_dim);
        let units = member.read(&pool.tensor, &blocks)?;
        let axes = match view.order {
            KvLayout::Hnd => units.reshape((blocks.len(), kv, heads, per_block, dim))?.permute((1, 0, 3, 2, 4))?,
            KvLayout::Nhd => units.reshape((blocks.len(), kv, per_block, heads, dim))?.permute((1, 0, 2, 3, 4))?,
        };
        let dense = axes.contiguous()?.reshape((kv, blocks.len() * per_block, heads, dim))?.narrow(1, 0, entries)?;
        let part = |index: usize| dense.narrow(0, index, 1)?.squeeze(0)?.contiguous();
        let values = if kv == 2 { Some(part(1)?) } else { None };
        Ok(DenseKv { first_token: first * spec.stride as usize, keys: part(0)?, values })
    }

    /// Blocks of an MLA layer as they are stored, `[blocks, columns, block_size, width of a column]`; rows are one column.
    pub(crate) fn read_latent(&self, place: PoolIndex, blocks: &[BlockId]) -> Result<Tensor> {
        let (pool, view) = self.latent(place)?;
        let (_, _, member) = self.member(place)?;
        let shape = (blocks.len(), view.num_kv_heads, view.tokens_per_block, view.head_dim);
        Ok(member.read(pool, &numbers(blocks))?.reshape(shape)?)
    }

    /// Writes blocks of an MLA layer as [`KvCacheManager::read_latent`] gives them.
    pub(crate) fn write_latent(&self, place: PoolIndex, blocks: &[BlockId], values: &Tensor) -> Result<()> {
        let (_, pool, member) = self.member(place)?;
        for (block, row) in blocks.iter().zip(0..) {
            let start = block.0 as usize * member.view.block_elems + member.view.layer_offset;
            pool.tensor.write_elems(start, &values.get(row)?.contiguous()?.flatten_all()?)?;
        }
        Ok(())
    }

    /// Checks that values are what [`KvCacheManager::read_latent`] would give.
    pub(crate) fn check_latent(&self, place: PoolIndex, blocks: &[BlockId], values: &Tensor) -> Result<()> {
        let (pool, view) = self.latent(place)?;
        let expected = [blocks.len(), view.num_kv_heads, view.tokens_per_block, view.head_dim];
        if values.dims() == expected && values.dtype() == pool.tensor.dtype() {
            return Ok(());
        }
        let (found, dtype) = (values.dims(), values.dtype());
        let pool = pool.tensor.dtype();
        Err(ManagerError::ForeignState(format!("{found:?} {dtype:?}, expected {expected:?} {pool:?}")))
    }

    /// A layer with one tensor, in which the tokens of a column lie one after the other.
    fn latent(&self, place: PoolIndex) -> Result<(&PoolTensor, KvLayerView)> {
        let (_, pool, member) = self.member(place)?;
        if matches!(
            member.view,
            KvLayerView { kv_factor: 1, num_kv_heads: 1, .. } | KvLayerView { kv_factor: 1, order: KvLayout::Hnd, .. }
        ) {
            return Ok((&pool.tensor, member.view));
        }
        Err(ManagerError::ForeignState(format!("pool `{}` holds keys and values, not latents", pool.tensor.id)))
    }

    pub(crate) fn copy_block(&self, paged: usize, from: BlockId, to: BlockId) -> Result<()> {
        self.pools[paged].tensor.copy_units(&[(from.0, to.0)])
    }

    /// Copies one entry of every member, piece by contiguous piece.
    pub(crate) fn copy_entry(&self, paged: usize, from: (BlockId, u32), to: (BlockId, u32)) -> Result<()> {
        let KvPool { tensor, members, .. } = &self.pools[paged];
        for member in members {
            let start = |(block, entry): (BlockId, u32), piece: usize| {
                block.0 as usize * member.view.block_elems + member.piece_offset(piece, entry as usize)
            };
            let (pieces, elems) = (member.view.kv_factor * member.view.num_kv_heads, member.view.head_dim);
            for piece in 0..pieces {
                tensor.copy_elems(tensor, start(from, piece), start(to, piece), elems)?;
            }
        }
        Ok(())
    }

    pub(crate) fn pool(&self, paged: usize) -> &PoolTensor {
        &self.pools[paged].tensor
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = (usize, &PoolTensor)> {
        self.pools.iter().map(|pool| (pool.spec.pool, &pool.tensor))
    }

    pub(crate) fn pools_mut(&mut self) -> impl Iterator<Item = (usize, &mut PoolTensor)> {
        self.pools.iter_mut().map(|pool| (pool.spec.pool, &mut pool.tensor))
    }

    fn member(&self, place: PoolIndex) -> Result<(usize, &KvPool, &KvMember), BookError> {
        let unknown = || BookError::UnknownPool(place.pool.to_string());
        let Indexing::Blocks(paged) = place.indexing else { return Err(unknown()) };
        let pool = self.pools.get(paged).ok_or_else(unknown)?;
        Ok((paged, pool, pool.members.get(place.member).ok_or_else(unknown)?))
    }
}

impl KvMember {
    /// Blocks of the layer, `[blocks, elements]` as they are stored.
    fn read(&self, pool: &PoolTensor, blocks: &[u32]) -> Result<Tensor> {
        Ok(pool.read_units(blocks)?.narrow(1, self.view.layer_offset, self.view.layer_elems())?)
    }

    /// Where a contiguous piece of an entry, a head's row or a column's, lies inside a block.
    fn piece_offset(&self, piece: usize, entry: usize) -> usize {
        self.view.row_offset(piece / self.view.num_kv_heads, piece % self.view.num_kv_heads, entry)
    }
}

fn numbers(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

/// Where a member lies. A resource without a layout is `[tokens, …]` per block: one head per row of its last dimension.
fn view(handler: &ResourceHandler, member: &Member, tensor: &PoolTensor, spec: &PagedSpec) -> Result<KvLayerView> {
    let bad = |reason: String| BookError::BadPlan { pool: tensor.id.clone(), reason };
    let elems = |bytes: u64| {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| bytes.is_multiple_of(tensor.elem_bytes));
        let bytes = bytes.ok_or_else(|| bad(format!("member `{}` is not aligned to its dtype", member.resource)))?;
        Ok::<usize, ManagerError>(bytes / tensor.elem_bytes)
    };
    let sizes: Vec<u64> = handler.shape().iter().map(|dim| dim.size).collect();
    let row = sizes.last().copied().unwrap_or(1);
    let row_bytes = handler.dtype().row_bytes(row).ok_or_else(|| bad("a row is too long".into()))?;
    let (kv_factor, num_kv_heads) = match (handler.layout(), sizes.as_slice()) {
        (Some(_), &[kv_factor, heads, _]) => (kv_factor, heads),
        _ => (1, sizes.iter().rev().skip(1).product()),
    };
    Ok(KvLayerView {
        block_elems: tensor.unit_elems,
        layer_offset: elems(member.offset)?,
        kv_factor: kv_factor as usize,
        num_kv_heads: num_kv_heads as usize,
        head_dim: elems(row_bytes)?,
        tokens_per_block: spec.entries_per_block as usize,
        order: handler.layout().unwrap_or(KvLayout::Nhd),
    })
}

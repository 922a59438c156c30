//! Mixture of experts: a router, the experts it chooses from, and experts that every token passes.

use cacheplan_kernels::{Routing, Rows, Run};
use candle_core::Tensor;

use super::{ExpertMlps, Linear, Mlp, MlpShape, RmsNorm, SharedExpert};
use crate::error::{ConfigError, Result};
use crate::exported::Writer;
use crate::weights::Scope;

/// The feed-forward layer of a sparse model.
#[derive(Debug)]
pub(crate) struct Moe {
    pub(crate) routing: Routing,
    pub(crate) router: Linear,
    /// Norms of the rows that the router and the experts see, where these are not the same.
    pub(crate) norms: Option<[RmsNorm; 2]>,
    /// `[experts]`, added to the scores for the choice alone.
    pub(crate) correction: Option<Tensor>,
    /// `[experts]` in f32, what the shares of each are multiplied by once they are chosen.
    pub(crate) share_scales: Option<Tensor>,
    pub(crate) experts: ExpertMlps,
    /// To the narrower rows that the experts of some models compute on, and back.
    pub(crate) latent: Option<[Linear; 2]>,
    pub(crate) shared: Option<SharedExpert>,
}

impl Moe {
    /// Reads `gate` and `experts`: each by itself with its projections under `names`, or all of them stacked.
    pub(crate) fn load(weights: &Scope<'_>, routing: Routing, names: [&str; 3], expert: MlpShape) -> Result<Self> {
        let routing = checked_routing(routing)?;
        let router = Linear::load(&weights.enter("gate"), expert.hidden, routing.experts, false)?;
        let experts = ExpertMlps::read(&weights.enter("experts"), routing.experts, names, expert)?;
        Ok(Self::new(routing, router, experts))
    }

    /// A router and the experts that it chooses from.
    pub(crate) fn new(routing: Routing, router: Linear, experts: ExpertMlps) -> Self {
        Self { routing, router, norms: None, correction: None, share_scales: None, experts, latent: None, shared: None }
    }

    /// Reads a `gate` whose choice is corrected, and with `expert` each of `experts`.
    pub(crate) fn load_corrected(
        weights: &Scope<'_>,
        hidden: usize,
        routing: Routing,
        expert: impl Fn(&Scope<'_>) -> Result<Mlp>,
        shared: Option<Mlp>,
    ) -> Result<Self> {
        let routing = checked_routing(routing)?;
        let (gate, experts) = (weights.enter("gate"), weights.enter("experts"));
        let router = Linear::load(&gate, hidden, routing.experts, false)?;
        let each = ExpertMlps::load(weights.backend(), routing.experts, |i| expert(&experts.enter(i)))?;
        Ok(Self {
            correction: Some(gate.float("e_score_correction_bias", routing.experts)?),
            shared: shared.map(|mlp| SharedExpert { mlp, gate: None }),
            ..Self::new(routing, router, each)
        })
    }

    /// `[rows, hidden]` to `[rows, hidden]`.
    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = match &self.shared {
            Some(shared) => shared.forward(on, x)?,
            None => x.zeros_like()?,
        };
        if let Some([_, norm]) = &self.norms {
            return self.add_routed(on, y, x, &norm.forward(on, x)?);
        }
        let Some([inward, outward]) = &self.latent else { return self.add_routed(on, y, x, x) };
        let narrow = inward.forward(on, x)?;
        y + outward.forward(on, &self.add_routed(on, narrow.zeros_like()?, x, &narrow)?)?
    }

    /// As nodes of a graph.
    pub(crate) fn written(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let [routed_by, seen] = match &self.norms {
            Some([router, experts]) => [router.trace(writer, x)?, experts.trace(writer, x)?],
            None => [x, x].map(str::to_owned),
        };
        let logits = self.router.trace(writer, &routed_by)?;
        let [correction, scales] = [&self.correction, &self.share_scales]
            .map(|numbers| numbers.as_ref().map(|numbers| writer.wide_weight(numbers)).transpose());
        let chosen = writer.route(&self.routing, &logits, [correction?.as_deref(), scales?.as_deref()]);
        let routed = match &self.latent {
            None => self.experts.written(writer, &seen, &chosen)?,
            Some([inward, outward]) => {
                let narrow = inward.trace(writer, x)?;
                let routed = self.experts.written(writer, &narrow, &chosen)?;
                outward.trace(writer, &routed)?
            }
        };
        let Some(shared) = &self.shared else { return Ok(routed) };
        let y = shared.written(writer, x)?;
        Ok(writer.node("Add", &[&y, &routed]))
    }

    /// `y`, and for each row of `x` what its experts make of the same row of `seen`.
    fn add_routed(&self, on: &Run<'_>, y: Tensor, x: &Tensor, seen: &Tensor) -> candle_core::Result<Tensor> {
        let logits = match &self.norms {
            Some([norm, _]) => self.router.forward(on, &norm.forward(on, x)?)?,
            None => self.router.forward(on, x)?,
        };
        let (chosen, mut shares) = self.routing.run(on, &logits, self.correction.as_ref())?;
        if let Some(scales) = &self.share_scales {
            shares = (&shares * scales.index_select(&chosen.flatten_all()?, 0)?.reshape(shares.shape())?)?;
        }
        if let Some(routed) = self.experts.summed(on, seen, &chosen, &shares)? {
            return Ok(Rows(&y).weighted_sum(on, 1.0, &routed, 1.0)?);
        }
        let (mut rows, mut outs) = (Vec::new(), Vec::new());
        // Which rows an expert sees, and with it the shapes of everything after it, is asked of the host.
        let by_expert = self.routing.by_expert(on, &chosen, &shares)?;
        for (expert, (chosen, shares)) in self.experts.each().iter().zip(by_expert) {
            if chosen.is_empty() {
                continue;
            }
            let seen = seen.index_select(&Tensor::new(&*chosen, x.device())?, 0)?;
            let shares = Tensor::new(shares, x.device())?.to_dtype(x.dtype())?.unsqueeze(1)?;
            outs.push(expert.forward(on, &seen)?.broadcast_mul(&shares)?);
            rows.extend(chosen);
        }
        if outs.is_empty() {
            return Ok(y);
        }
        // All at once, since every addition makes a new `y`.
        y.index_add(&Tensor::new(rows, x.device())?, &Tensor::cat(&outs, 0)?, 0)
    }
}

/// A routing, if its numbers fit together.
pub(crate) fn checked_routing(routing: Routing) -> Result<Routing, ConfigError> {
    ConfigError::bounded("num_experts", routing.experts, 1 << 16)?;
    if routing.fits() {
        return Ok(routing);
    }
    let Routing { experts, experts_per_token, groups, top_groups, .. } = routing;
    let found = format!("{experts_per_token} of {experts} experts, {top_groups} of {groups} groups");
    let known = "groups of equal size, and no more chosen than there are";
    Err(ConfigError::unsupported("num_experts_per_tok", found, known))
}

//! From the rope section of a config to the kernel's rotary embedding.

use cacheplan_kernels::{Rope, RopeScaling};
use serde::Deserialize;

use crate::error::{ConfigError, Result};

/// The rope section in its published (`rope_theta` and `rope_scaling`) and its later (`rope_parameters`) spelling.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RopeConfig {
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeParameters>,
    max_position_embeddings: Option<usize>,
    /// Phi and those that follow it state this beside the parameters; it goes before theirs.
    original_max_position_embeddings: Option<usize>,
    /// GGUF's number of the elements that are rotated; it goes before every share.
    rotary_dim: Option<usize>,
    /// Whether the weights have the elements that are rotated together beside each other.
    #[serde(default)]
    rope_interleaved: bool,
    /// What each frequency is divided by, where a file states that itself.
    #[serde(skip)]
    divisors: Option<Vec<f32>>,
}

/// One set of rope parameters; models whose layers differ have several.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RopeParameters {
    rope_type: Option<String>,
    /// The same by an older name; some configs state both.
    r#type: Option<String>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f32>,
    /// Factors of GGUF's that none of our rules has.
    attn_factor: Option<f32>,
    yarn_log_multiplier: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    #[serde(alias = "original_context_length")]
    original_max_position_embeddings: Option<usize>,
    attention_factor: Option<f32>,
    #[serde(alias = "yarn_beta_fast")]
    beta_fast: Option<f32>,
    #[serde(alias = "yarn_beta_slow")]
    beta_slow: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    truncate: Option<bool>,
}

impl RopeConfig {
    /// The embedding of heads of `head_dim` elements, all of which are rotated.
    pub(crate) fn rope(&self, head_dim: usize) -> Result<Rope> {
        if let Some(share) = self.parameters().partial_rotary_factor.filter(|&share| share != 1.0) {
            return Err(ConfigError::unsupported("partial_rotary_factor", share, "1 only for this architecture").into());
        }
        if let Some(rotated) = self.rotary_dim.filter(|&rotated| rotated != head_dim) {
            return Err(ConfigError::unsupported(
                "rope.dimension_count",
                rotated,
                "the size of a head only for this architecture",
            )
            .into());
        }
        self.partial_rope(head_dim)
    }

    /// The same for a model that rotates a share of each head.
    pub(crate) fn partial_rope(&self, head_dim: usize) -> Result<Rope> {
        let mut parameters = self.parameters();
        if let Some(rotated) = self.rotary_dim {
            parameters.partial_rotary_factor = Some(rotated as f64 / head_dim as f64);
        }
        let scaling = match &self.divisors {
            Some(divisors) => RopeScaling::PerFrequency { divisors: divisors.clone(), attention_factor: 1.0 },
            None => parameters.scaling(head_dim, self.max_position_embeddings)?,
        };
        let rope = parameters.embedding(head_dim, &scaling)?;
        Ok(if self.rope_interleaved { rope.interleaved() } else { rope })
    }

    /// For a file that states what each frequency is divided by.
    pub(crate) fn with_divisors(&self, divisors: Option<Vec<f32>>) -> Self {
        Self { divisors, ..self.clone() }
    }

    /// For a model that rotates `share` of each head where its config does not say.
    pub(crate) fn with_default_share(&self, share: f64) -> Self {
        self.with_share(self.partial_rotary_factor.unwrap_or(share))
    }

    /// For a model that rotates `share` of each head unless its rope parameters say otherwise.
    pub(crate) fn with_share(&self, share: f64) -> Self {
        Self { partial_rotary_factor: Some(share), ..self.clone() }
    }

    /// For a model whose base is `theta` where its config does not say.
    pub(crate) fn with_default_theta(&self, theta: f32) -> Self {
        Self { rope_theta: self.rope_theta.or(Some(theta)), ..self.clone() }
    }

    /// Whether the config states rope parameters and no base in them, as those do that rotate nothing.
    pub(crate) fn states_no_base(&self) -> bool {
        self.stated().is_some_and(|parameters| parameters.rope_theta.or(self.rope_theta).is_none())
    }

    /// Whether the config says more than a base.
    pub(crate) fn has_parameters(&self) -> bool {
        self.stated().is_some()
    }

    fn stated(&self) -> Option<&RopeParameters> {
        self.rope_scaling.as_ref().or(self.rope_parameters.as_ref())
    }

    fn parameters(&self) -> RopeParameters {
        let stated = self.stated().cloned().unwrap_or_default();
        RopeParameters {
            rope_theta: stated.rope_theta.or(self.rope_theta),
            partial_rotary_factor: stated.partial_rotary_factor.or(self.partial_rotary_factor),
            original_max_position_embeddings: self
                .original_max_position_embeddings
                .or(stated.original_max_position_embeddings),
            ..stated
        }
    }

    /// The factor that DeepSeek puts on attention scores besides the one on the embedding; 1 where nothing is scaled.
    pub(crate) fn yarn_score_factor(&self) -> f64 {
        let parameters = self.stated();
        let magnitude = parameters.filter(|p| p.rope_type() != "default").and_then(|p| {
            let all_dim = p.mscale_all_dim.filter(|&all_dim| all_dim != 0.0)?;
            Some(f64::from(yarn_magnitude(p.factor?, all_dim)))
        });
        magnitude.map_or(1.0, |magnitude| magnitude * magnitude)
    }
}

impl RopeParameters {
    /// For layers whose base is `theta` where their parameters do not say.
    pub(crate) fn with_default_theta(self, theta: f32) -> Self {
        Self { rope_theta: self.rope_theta.or(Some(theta)), ..self }
    }

    /// For layers that turn `share` of the frequencies of whole heads.
    pub(crate) fn proportional(self, share: f64) -> Self {
        Self { rope_type: Some("proportional".to_owned()), partial_rotary_factor: Some(share), ..self }
    }

    fn rope_type(&self) -> &str {
        self.rope_type.as_deref().or(self.r#type.as_deref()).unwrap_or("default")
    }

    /// The embedding of heads of `head_dim` elements, halves paired.
    pub(crate) fn rope(&self, head_dim: usize, max_position: Option<usize>) -> Result<Rope> {
        self.embedding(head_dim, &self.scaling(head_dim, max_position)?)
    }

    fn embedding(&self, head_dim: usize, scaling: &RopeScaling) -> Result<Rope> {
        self.check()?;
        let theta = self.rope_theta.unwrap_or(10_000.0);
        let share = if self.is_proportional() { 1.0 } else { self.partial_rotary_factor.unwrap_or(1.0) };
        let rotated = (head_dim as f64 * share) as usize;
        if rotated > head_dim {
            let known = "a share of a head";
            return Err(ConfigError::unsupported("partial_rotary_factor", share, known).into());
        }
        Ok(Rope::new(theta, rotated, scaling)?)
    }

    /// Whether the frequencies are those of whole heads, of which a share turns.
    fn is_proportional(&self) -> bool {
        self.rope_type() == "proportional"
    }

    /// Refuses what no angle is computed with: attention leaves out what is no number, in silence.
    fn check(&self) -> Result<(), ConfigError> {
        let stated = [
            ("rope_theta", self.rope_theta),
            ("rope_parameters.factor", self.factor),
            ("rope_parameters.low_freq_factor", self.low_freq_factor),
            ("rope_parameters.high_freq_factor", self.high_freq_factor),
            ("rope_parameters.attention_factor", self.attention_factor),
            ("rope_parameters.beta_fast", self.beta_fast),
            ("rope_parameters.beta_slow", self.beta_slow),
        ];
        let wrong =
            stated.into_iter().find_map(|(key, found)| Some((key, found.filter(|f| !(f.is_finite() && *f > 0.0))?)));
        wrong.map_or(Ok(()), |(key, found)| Err(ConfigError::unsupported(key, found, "numbers above 0")))
    }

    fn scaling(&self, head_dim: usize, max_position: Option<usize>) -> Result<RopeScaling, ConfigError> {
        ConfigError::bounded("head_dim", head_dim, 1 << 16)?;
        let factor = || self.factor.ok_or(ConfigError::Missing { key: "rope_parameters.factor" });
        let original_max_position = || {
            self.original_max_position_embeddings
                .or(max_position)
                .ok_or(ConfigError::Missing { key: "rope_parameters.original_max_position_embeddings" })
        };
        let factors = [
            ("rope.scaling.attn_factor", self.attn_factor, 1.0),
            ("rope.scaling.yarn_log_multiplier", self.yarn_log_multiplier, 0.0),
        ];
        if let Some((key, Some(found), _)) =
            factors.into_iter().find(|(_, found, neutral)| found.is_some_and(|f| f != *neutral))
        {
            return Err(ConfigError::unsupported(key, found, "no such factor"));
        }
        match self.rope_type() {
            "default" | "none" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear(factor()?)),
            "proportional" => {
                let share = self.partial_rotary_factor.unwrap_or(1.0);
                let turned = (share * head_dim as f64 / 2.0) as usize;
                let divisor = |at: usize| if at < turned { self.factor.unwrap_or(1.0) } else { f32::INFINITY };
                Ok(RopeScaling::PerFrequency {
                    divisors: (0..head_dim.div_ceil(2)).map(divisor).collect(),
                    attention_factor: 1.0,
                })
            }
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: self
                    .low_freq_factor
                    .ok_or(ConfigError::Missing { key: "rope_parameters.low_freq_factor" })?,
                high_freq_factor: self
                    .high_freq_factor
                    .ok_or(ConfigError::Missing { key: "rope_parameters.high_freq_factor" })?,
                original_max_position: original_max_position()?,
            }),
            "yarn" => Ok(RopeScaling::Yarn {
                factor: factor()?,
                original_max_position: original_max_position()?,
                beta_fast: self.beta_fast.unwrap_or(32.0),
                beta_slow: self.beta_slow.unwrap_or(1.0),
                truncate: self.truncate.unwrap_or(true),
                attention_factor: self.attention_factor.or_else(|| self.yarn_attention_factor()),
            }),
            other => {
                let known = "default, linear, llama3, proportional and yarn";
                Err(ConfigError::unsupported("rope_parameters.rope_type", other, known))
            }
        }
    }

    /// DeepSeek states the factor as a quotient of two magnitudes.
    fn yarn_attention_factor(&self) -> Option<f32> {
        let (mscale, all_dim) = (self.mscale?, self.mscale_all_dim?);
        let magnitude = |m: f32| yarn_magnitude(self.factor.unwrap_or(1.0), m);
        (mscale != 0.0 && all_dim != 0.0).then(|| magnitude(mscale) / magnitude(all_dim))
    }
}

fn yarn_magnitude(factor: f32, mscale: f32) -> f32 {
    if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 }
}

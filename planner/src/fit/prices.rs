//! What devices cost.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;

use crate::device::DeviceInfo;

/// What devices cost, as its TOML file states it: `currency = "USD"` and `[per_hour]` with a number for each device.
/// [`state`](Self::state) states one by itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// What the prices are in; empty where nobody says.
    pub currency: String,
    /// One hour of one device, by its name.
    pub per_hour: BTreeMap<String, f64>,
}

/// What one hour costs, as people write it: `2.49`, `$2.49`.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// The sign in front of it; empty where there is none.
    pub currency: &'static str,
    /// How much.
    pub amount: f64,
}

/// The signs that stand in front of an amount.
const SIGNS: [&str; 4] = ["$", "€", "£", "¥"];

impl FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sign = SIGNS.into_iter().find_map(|sign| Some((sign, text.strip_prefix(sign)?)));
        let (currency, amount) = sign.unwrap_or(("", text));
        if amount.starts_with('.') {
            return Err(format!(
                "`{text}` has no digit before its point; write 0{amount}, or, if a sign stood in front, quote it: a shell reads `$2` itself"
            ));
        }
        let amount = amount.parse().map_err(|_| format!("`{text}` is no price; write one such as 2.49 or $2.49"))?;
        Ok(Self { currency, amount })
    }
}

/// An amount without a currency.
impl From<f64> for Price {
    fn from(amount: f64) -> Self {
        Self { currency: "", amount }
    }
}

/// An amount with so many digits, in a currency if it has a name: a sign stands in front, a word behind.
pub(crate) fn money(amount: f64, digits: usize, currency: &str) -> String {
    match currency {
        "" => format!("{amount:.digits$}"),
        sign if SIGNS.contains(&sign) => format!("{sign}{amount:.digits$}"),
        word => format!("{amount:.digits$} {word}"),
    }
}

impl Prices {
    /// Reads them.
    ///
    /// # Errors
    /// In words: text that is no TOML, an unknown or missing key, a price below 0.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let prices: Self = cacheplan_files::Source::parse_toml(text).map_err(|error| error.to_string())?;
        for (device, price) in &prices.per_hour {
            let named = device.parse::<DeviceInfo>().map_err(|error| format!("`per_hour.{device}`: {error}"))?;
            if let Some(other) = prices.name_of(&named).filter(|other| *other != device) {
                return Err(format!("`per_hour.{other}` and `per_hour.{device}` are prices of one device"));
            }
            if !price.is_finite() || *price < 0.0 {
                return Err(format!("`per_hour.{device}` is {price}; a price of at least 0 was expected"));
            }
        }
        Ok(prices)
    }

    /// States the price of an hour of one device, in place of another that is stated of it.
    ///
    /// # Errors
    /// In words: what is no device, a price below 0, one in another currency than those that are stated.
    pub fn state(&mut self, device: &str, price: impl Into<Price>) -> Result<(), String> {
        let Price { currency, amount: price } = price.into();
        let named = device.parse::<DeviceInfo>().map_err(|error| error.to_string())?;
        if !price.is_finite() || price < 0.0 {
            return Err(format!("{price} is no price of `{device}`; a number of at least 0 was expected"));
        }
        if !currency.is_empty() && !self.currency.is_empty() && currency != self.currency {
            return Err(format!(
                "the price of `{device}` is in {currency}, others are in {}; state one currency",
                self.currency
            ));
        }
        if !currency.is_empty() {
            currency.clone_into(&mut self.currency);
        }
        let stated = self.name_of(&named).cloned().unwrap_or_else(|| device.to_owned());
        self.per_hour.insert(stated, price);
        Ok(())
    }

    /// What a device is called here.
    fn name_of(&self, device: &DeviceInfo) -> Option<&String> {
        self.per_hour.keys().find(|name| name.parse().as_ref() == Ok(device))
    }

    /// The price of an hour of one device, however its name is written.
    pub(super) fn of(&self, device: &DeviceInfo) -> Option<f64> {
        self.per_hour.get(self.name_of(device)?).copied()
    }
}

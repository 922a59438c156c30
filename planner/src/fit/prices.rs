//! What devices cost.

use std::collections::BTreeMap;

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
    /// In words: what is no device, a price below 0.
    pub fn state(&mut self, device: &str, price: f64) -> Result<(), String> {
        let named = device.parse::<DeviceInfo>().map_err(|error| error.to_string())?;
        if !price.is_finite() || price < 0.0 {
            return Err(format!("{price} is no price of `{device}`; a number of at least 0 was expected"));
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

//! Settling: every verdict, and races.

use crate::tests;

tests![];

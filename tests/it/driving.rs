//! The loop: leases, fences, crashes.

use crate::tests;

tests![];

/// What another process does.
pub async fn child(role: &str) {
    panic!("no such role: {role}");
}

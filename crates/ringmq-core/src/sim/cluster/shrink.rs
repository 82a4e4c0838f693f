//! Makes a failing run smaller: fewer faults, less time, fewer clients, as long as it still fails.

use super::plan::Plan;

/// Part of a plan that is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReducedPlan {
    /// Faults that are taken away.
    pub without: Vec<String>,
    pub span_ms: u64,
    pub clients: usize,
}

impl ReducedPlan {
    /// The whole plan.
    pub fn nothing(plan: &Plan) -> ReducedPlan {
        ReducedPlan { without: vec![], span_ms: plan.span_ms, clients: plan.clients }
    }

    /// The first fault that there is not, if any.
    pub fn apply(&self, plan: &mut Plan) -> Result<(), String> {
        for name in &self.without {
            if !plan.faults.remove(name) {
                return Err(name.clone());
            }
        }
        (plan.span_ms, plan.clients) = (self.span_ms, self.clients);
        Ok(())
    }
}

/// The smallest that was found; `fails` runs it.
pub fn shrink(plan: &Plan, fails: &mut dyn FnMut(&ReducedPlan) -> bool) -> ReducedPlan {
    let mut best = ReducedPlan::nothing(plan);
    let names = plan.faults.names();
    // halves of the faults first, then each alone
    for size in [names.len() / 2, names.len() / 4, 1] {
        for some in names.chunks(size.max(1)) {
            let mut next = best.clone();
            next.without.extend(some.iter().filter(|n| !best.without.iter().any(|w| w == *n)).map(|n| n.to_string()));
            if next != best && fails(&next) {
                best = next;
            }
        }
    }
    // the shortest span that still fails, to about a twentieth
    let (mut low, mut step) = (0, best.span_ms / 2);
    while step > plan.span_ms / 20 {
        let next = ReducedPlan { span_ms: low + step, ..best.clone() };
        if next.span_ms < best.span_ms && fails(&next) {
            best = next;
        } else {
            low += step;
        }
        step /= 2;
    }
    while best.clients > 1 {
        let next = ReducedPlan { clients: best.clients - 1, ..best.clone() };
        if !fails(&next) {
            break;
        }
        best = next;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_does_not_need_goes() {
        let mut plan = Plan::draw(1, 3, None);
        plan.faults.crash = 1.0;
        plan.faults.pause = 1.0;
        (plan.span_ms, plan.clients) = (8000, 6);
        let mut runs = 0;
        let cut = shrink(&plan, &mut |cut| {
            runs += 1;
            let mut smaller = plan.clone();
            cut.apply(&mut smaller).expect("known faults");
            smaller.faults.crash > 0.0 && smaller.span_ms >= 3000 && smaller.clients >= 2
        });
        let mut smaller = plan.clone();
        cut.apply(&mut smaller).expect("known faults");
        assert_eq!((smaller.faults.names(), cut.clients), (vec!["crash"], 2));
        assert!((3000..3800).contains(&cut.span_ms) && runs < 80, "{cut:?} after {runs} runs");
        assert_eq!(ReducedPlan { without: vec!["weather".into()], ..cut }.apply(&mut smaller), Err("weather".into()));
    }
}

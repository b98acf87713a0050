//! What time does it take? Fitted curves for experts, exchanges, attention and the rest of a step.

"""The hand-written checker that every generated test file calls.

A generated file describes its op in one ``Op`` literal and lists cases; how they are checked is
written here, once for all ops. Results are compared with the op's reference in float64 on the
same rounded inputs (``check_forward``, ``check_gradients`` ...) or with each other to the bit
(``check_bits``, ``check_integers`` ...), and every comparison also asserts through the op's
``calls`` that the schedule under test is the one that ran.

Importing this package changes nothing; ``require_device`` mends Triton's interpreter when it is
the one that runs the kernels (see ``kgen.testing.interpreter``).
"""

from kgen.testing.accuracy import (
    check_forward,
    check_gradcheck,
    check_gradients,
    check_mixed,
    check_one_output,
    check_optional,
    check_special,
    check_worked,
)
from kgen.testing.cases import by_pairs, in_turn
from kgen.testing.contract import Refusal, refusals
from kgen.testing.description import Case, Input, Op, Output, Param, Tolerance
from kgen.testing.exactness import (
    check_bits,
    check_far_rows,
    check_input_layout,
    check_integers,
    check_sum,
    check_upstream_layout,
    check_wanted,
)
from kgen.testing.interpreter import require_device
from kgen.testing.layouts import INPUT_LAYOUTS, REFUSED_LAYOUTS, UPSTREAM_LAYOUTS
from kgen.testing.promises import (
    check_at_the_limit,
    check_changed,
    check_grad_mode,
    check_inference_only,
    check_memory,
    check_refusal,
    check_scratch,
    check_too_long,
    check_twice,
    check_untouched,
    check_way_out,
)
from kgen.testing.report import Report
from kgen.testing.samples import mixtures, subsets
from kgen.testing.second_order import (
    check_first_order_alone,
    check_gradgradcheck,
    check_second_order,
    check_second_order_layout,
    check_second_order_of,
    check_second_order_optional,
    check_second_order_wanted,
    check_thrice,
)
from kgen.testing.special import SPECIAL_ROWS, special_cases

__all__ = [
    "INPUT_LAYOUTS",
    "REFUSED_LAYOUTS",
    "SPECIAL_ROWS",
    "UPSTREAM_LAYOUTS",
    "Case",
    "Input",
    "Op",
    "Output",
    "Param",
    "Refusal",
    "Report",
    "Tolerance",
    "by_pairs",
    "check_at_the_limit",
    "check_bits",
    "check_changed",
    "check_far_rows",
    "check_first_order_alone",
    "check_forward",
    "check_grad_mode",
    "check_gradcheck",
    "check_gradgradcheck",
    "check_gradients",
    "check_inference_only",
    "check_input_layout",
    "check_integers",
    "check_memory",
    "check_mixed",
    "check_one_output",
    "check_optional",
    "check_refusal",
    "check_scratch",
    "check_second_order",
    "check_second_order_layout",
    "check_second_order_of",
    "check_second_order_optional",
    "check_second_order_wanted",
    "check_special",
    "check_sum",
    "check_thrice",
    "check_too_long",
    "check_twice",
    "check_untouched",
    "check_upstream_layout",
    "check_wanted",
    "check_way_out",
    "check_worked",
    "in_turn",
    "mixtures",
    "refusals",
    "require_device",
    "special_cases",
    "subsets",
]

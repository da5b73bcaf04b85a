"""What happened inside a model, as plain data."""

from .activations import Look as Look
from .activations import Site as Site
from .activations import observe as observe
from .activations import sites as sites
from .alignment import Alignment as Alignment
from .alignment import alignment as alignment
from .copying import Copying as Copying
from .copying import copying as copying
from .gradients import LayerGradient as LayerGradient
from .gradients import gradient_by_depth as gradient_by_depth
from .gradients import gradient_norms as gradient_norms
from .gradients import jacobian_norms as jacobian_norms
from .implied_weights import Implied as Implied
from .implied_weights import OrderError as OrderError
from .implied_weights import compare_kinds as compare_kinds
from .record_calls import Call as Call
from .record_calls import watch as watch
from .search import BothSearches as BothSearches
from .search import Branch as Branch
from .search import next_tokens as next_tokens
from .search import score_whole as score_whole
from .search import search_tree as search_tree
from .summary import Summary as Summary
from .summary import summarize as summarize
from .token_trace import TokenSteps as TokenSteps
from .token_trace import token_steps as token_steps

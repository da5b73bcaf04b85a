"""The inside of a model's forward pass, as plain data."""

from .activations import AttentionRecord as AttentionRecord
from .activations import AttentionSite as AttentionSite
from .activations import attention_sites as attention_sites
from .activations import observe as observe
from .alignment import Alignment as Alignment
from .alignment import alignment as alignment
from .copying import CopyingResult as CopyingResult
from .copying import copying as copying
from .gradients import LayerGradient as LayerGradient
from .gradients import gradient_by_depth as gradient_by_depth
from .gradients import gradient_norms as gradient_norms
from .gradients import jacobian_norms as jacobian_norms
from .implied_weights import KindComparison as KindComparison
from .implied_weights import OrderError as OrderError
from .implied_weights import compare_kinds as compare_kinds
from .record_calls import AttentionCall as AttentionCall
from .record_calls import record_calls as record_calls
from .search import SearchComparison as SearchComparison
from .search import SearchNode as SearchNode
from .search import next_token_log_probs as next_token_log_probs
from .search import score_answer as score_answer
from .search import search_tree as search_tree
from .summary import HeadSummary as HeadSummary
from .summary import summarize as summarize
from .token_trace import TokenTrace as TokenTrace
from .token_trace import trace_token as trace_token

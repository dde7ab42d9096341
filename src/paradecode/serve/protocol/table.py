"""Tables of request fields that have no effect here, or are refused with a reason.

A field of a body's class takes effect. The tables name other fields that the openai and anthropic
packages and clients of other servers send, by the class of the object that holds them. A name in no
table is ignored as well, unless it is close to a known name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

TEXT = "the models here read and write text"
SEND = "send the whole conversation"

UNUSED = {
    "Common": """
        user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options
        prompt_cache_retention verbosity moderation request_id rid spaces_between_special_tokens
        stream_reasoning cache_prompt id_slot timings_per_token return_progress
        id client_metadata""",
    "Sampled": "web_search_options",
    "CompletionRequest": "reasoning_effort reasoning_budget thinking_token_budget",
    "StreamOptions": "include_obfuscation continuous_usage_stats",
    "Message": """
        id refusal annotations audio function_call reasoning reasoning_content reasoning_details
        reasoning_text reasoning_opaque thinking thinking_blocks status provider_specific_fields
        cache_control""",
    "Said": "annotations logprobs cache_control citations prompt_cache_breakpoint id",
    "Function": "output_schema",
    "ToolCall": "provider_specific_fields extra_content",
    "Tool": "cache_control defer_loading allowed_callers",
    # /v1/responses
    "ResponsesRequest": """
        context_management include max_tool_calls stream_options top_logprobs truncation""",
    "Reasoning": "summary generate_summary context mode",
    "TextOptions": "verbosity",
    "InputMessage": "id status phase internal_chat_message_metadata_passthrough",
    "PastCall": "id status caller namespace",
    "CallOutput": "id status caller namespace name",
    "FlatTool": "allowed_callers defer_loading",
    "FlatCustom": "allowed_callers defer_loading",
    "ForeignItem": """
        reasoning web_search_call file_search_call code_interpreter_call image_generation_call
        mcp_call mcp_list_tools mcp_approval_request mcp_approval_response compaction
        compaction_trigger tool_search_call tool_search_output additional_tools program
        program_output ghost_snapshot configuration_update""",
    # /v1/messages
    "CountTokensRequest": """
        betas billing_policy cache_control compaction container context_management
        diagnostics fallback_credit_token fallbacks inference_geo max_tokens mcp_servers speed
        stop_sequences top_k user_profile_id workspace_id""",
    "OutputConfig": "task_budget",
    "Thinking": "display block_binding",
    "Marked": "cache_control citations caller toolset_name",
    "ReadBlock": "title context",
    "Compaction": "encrypted_content signature tool_changes",
    "MessageTurn": "clear_at output_config id",
    "ToolOffer": "allowed_callers defer_loading eager_input_streaming input_examples",
    "ForeignBlock": """
        thinking redacted_thinking server_tool_use web_search_tool_result web_fetch_tool_result
        code_execution_tool_result bash_code_execution_tool_result advisor_tool_result
        text_editor_code_execution_tool_result tool_search_tool_result mcp_tool_use mcp_tool_result
        mcp_tool_listing container_upload fallback tool_addition tool_removal""",
    # llama.cpp's and Ollama's
    "NativeRequest": """
        n_probs n_keep n_discard t_max_predict_ms samplers typical_p dynatemp_range mirostat
        dynatemp_exponent dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
        dry_sequence_breakers xtc_probability xtc_threshold mirostat_tau mirostat_eta
        repeat_last_n min_keep post_sampling_probs response_fields top_n_sigma""",
    "OllamaRequest": "keep_alive logprobs top_logprobs truncate shift",
    "OllamaModel": "verbose name",
    "OllamaGenerate": "width height steps",
    "OllamaMessage": "thinking tool_call_id",
    "Options": """
        numa num_ctx num_batch num_gpu main_gpu low_vram f16_kv logits_all vocab_only use_mmap
        use_mlock embedding_only num_thread num_keep tfs_z typical_p repeat_last_n mirostat
        mirostat_tau mirostat_eta penalize_newline num_gqa draft_num_predict""",
    "OllamaCall": "id",
    "OllamaFunction": "index description",
    # All of them
    "ForeignTool": """
        namespace web_search web_search_preview file_search code_interpreter computer
        computer_use_preview image_generation local_shell shell apply_patch mcp tool_search
        programmatic_tool_calling bash_* text_editor_* computer_* memory_* code_execution_*
        web_search_* web_fetch_* tool_search_tool_bm25_* tool_search_tool_regex_* advisor_*
        browser_toolset_* computer_toolset_* mcp_toolset""",
    "ForeignChoice": """
        file_search web_search_preview web_search_preview_2025_03_11 computer
        computer_use_preview computer_use image_generation code_interpreter mcp shell apply_patch
        programmatic_tool_calling""",
    "Part": "tool_reference computer_screenshot",
}  # fmt: skip
"""Class of an object -> its fields, or types of the object, that are accepted without effect."""

REFUSED: dict[str, dict[str, str]] = {
    "Common": {
        "chat_template": "the template comes with the model",
        "prompt_embeds": "give text or token ids",
        "logits_processors": "use a constraint or logit_bias",
        "lora_path": "adapters are chosen where the server is started",
        "truncate_prompt_tokens": "a prompt is read as a whole",
    },
    "Sampled": {
        "functions": "use tools",
        "audio": TEXT,
    },
    "ChatRequest": {"suffix": "it is of /v1/completions"},
    "ResponsesRequest": {
        "background": "use stream",
        "conversation": SEND,
        "prompt": "give instructions and input",
    },
    "NativeRequest": {
        "grammar": "give json_schema, or guided_grammar in Lark's syntax",
        "image_data": TEXT,
        "lora": "adapters are chosen where the server is started",
    },
    "OllamaMessage": {"images": TEXT},
    "OllamaGenerate": {
        "images": TEXT,
        "context": SEND,
        "template": "the template comes with the model",
    },
    "ForeignItem": {"item_reference": "nothing is stored: send the item itself"},
    "ForeignBlock": {"image": TEXT},
    "ForeignThread": {"continue": SEND},
    "Part": dict.fromkeys(
        ("image", "image_url", "input_image", "input_audio", "video_url", "file", "input_file"),
        TEXT,
    ),
}
"""Class of an object -> its fields, or types of the object, that are refused -> the advice.

A value that asks for nothing, such as false or an empty list, is accepted.
"""


class FieldRules(NamedTuple):
    unused: frozenset[str]
    refused: Mapping[str, str]

    def knows(self, kind: str) -> bool:
        """Return whether a type has no effect.

        A star in the table stands for the date in a tool's type.
        """
        start = kind.rpartition("_")[0] if kind[-1:].isdigit() else kind
        return kind in self.unused or f"{start}_*" in self.unused


@lru_cache
def rules_of(kind: type) -> FieldRules:
    """Return the rules for objects of a class, which include the rules of its base classes."""
    names = [base.__name__ for base in kind.__mro__]
    unused = frozenset(word for name in names for word in UNUSED.get(name, "").split())
    refused = {k: why for name in reversed(names) for k, why in REFUSED.get(name, {}).items()}
    return FieldRules(unused, refused)

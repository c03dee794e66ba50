"""The keys of the file behind ``trtllm-serve --config``, beside those that planning reads.

Source: TensorRT-LLM, the fields of its LLM arguments for the PyTorch backend, of the 1.3 series and of
what was published after it. A key of a later release still may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping

_TOP = """
    agent_percentage agent_types allreduce_strategy attention_dp_config attn_backend auto_deploy_config
    backend batch_wait_max_tokens_ratio batch_wait_timeout_iters batch_wait_timeout_ms
    batched_logits_processor batching_type build_config cache_transceiver_config checkpoint_format
    checkpoint_io_policy checkpoint_loader context_parallel_size cp_config custom_tokenizer
    decoding_config disable_flashinfer_sampling disable_mm_encoder disable_overlap_scheduler dwdp_config
    enable_autotuner enable_chunked_prefill enable_early_first_token_response
    enable_encoder_decoder_mixed_cuda_graph enable_energy_metrics enable_in_graph_sampling
    enable_iter_perf_stats enable_iter_req_stats enable_layerwise_nvtx_marker enable_lm_head_tp_in_adp
    enable_lora enable_low_latency_host_dispatch enable_min_latency enable_mixed_sampler
    enable_mla_skip_correction enable_prompt_adapter enable_resource_governor enable_sleep
    enable_speculative_beam_history_d2h enable_tqdm enable_trtllm_sampler encode_only
    encoder_cuda_graph_config encoder_max_batch_size encoder_max_num_tokens env_overrides
    extended_runtime_perf_knob_config fail_fast_on_attention_window_too_large force_dynamic_quantization
    garbage_collection_gen0_threshold gather_generation_logits generation_config gms_config gms_socket_path
    gpus_per_node guided_decoding_backend iter_stats_max_iterations kv_cache_compression_config
    kv_connector_config layer_wise_benchmarks_config load_format lora_dir max_input_len
    max_prompt_adapter_token max_stats_len mla_skip_correction_threshold mm_encoder_only model model_kwargs
    moe_cluster_parallel_size moe_config moe_expert_parallel_size moe_tensor_parallel_size
    multimodal_config mx_config mx_server_url normalize_log_probs num_postprocess_workers
    num_serve_frontends nvfp4_gemm_config orchestrator_type otlp_traces_endpoint peft_cache_config
    perf_metrics_max_requests post_processor_hook postprocess_tokenizer_dir pp_partition print_iter_log
    prometheus_metrics_config quant_config ray_placement_config ray_worker_extension_cls
    ray_worker_nsight_options reasoning_parser reorder_policy_config request_stats_max_iterations
    return_perf_metrics revision sampler_force_async_worker sampler_type scheduler_config
    skip_tokenizer_init sm_disagg_config sparse_attention_config stream_interval telemetry_config tokenizer
    tokenizer_mode tokenizer_revision trust_remote_code use_cute_dsl_bf16_bmm use_cute_dsl_bf16_gemm
    use_cute_dsl_blockscaling_bmm use_cute_dsl_blockscaling_mm use_fine_grained_sync use_torch_sampler
    video_pruning_rate workspace
"""
_KV_CACHE = """
    attention_dp_events_gather_period_ms avg_seq_len block_reuse_config copy_on_partial_reuse
    cross_kv_cache_fraction disk_cache_path disk_cache_size disk_prefetch_num_reqs enable_block_reuse
    enable_kv_pool_rebalance enable_partial_reuse enable_swa_scratch_reuse event_buffer_max_size
    fp8_context_mla_kv_len_cap free_gpu_memory_fraction host_cache_size iteration_stats_interval
    kv_cache_event_hash_algo mamba_ssm_cache_dtype mamba_ssm_philox_rounds mamba_ssm_stochastic_rounding
    mamba_state_config mamba_prefix_cache max_attention_window max_gpu_total_bytes max_tokens
    max_util_for_resume pool_ratio secondary_offload_min_priority sink_token_length
    use_kv_cache_manager_v2 use_uvm
"""
_LORA = """
    cuda_graph_specialize_lora lora_ckpt_source lora_dir lora_request lora_target_modules max_cpu_loras
    max_lora_rank overlap_lora_and_base swap_gate_up_proj_lora_b_weight trtllm_modules_to_hf_modules
"""
_SPECULATIVE = """
    acceptance_length_threshold acceptance_rate_threshold acceptance_rate_window_size acceptance_window
    advanced_sampling_mode allow_advanced_sampling attention_backend begin_thinking_phase_token block_size
    drafter dynamic_tree_max_topK eagle3_layers_to_capture eagle3_model_arch eagle3_one_model eagle_choices
    enable_global_pool enable_penalty end_thinking_phase_token file_prefix global_pool_size greedy_sampling
    is_keep_all is_public_pool is_use_oldest load_format markov_head_type markov_rank mask_token_id
    max_concurrency max_matching_ngram_size max_ngram_size max_non_leaves_per_layer
    max_total_draft_tokens max_verification_set_size max_window_size medusa_choices mtp_eagle_one_model
    num_eagle_layers num_medusa_heads output_directory posterior_threshold pytorch_weights_path
    relaxed_delta relaxed_topk resource_manager sa_config speculative_model_format target_layer_ids
    use_dynamic_tree use_mtp_vanilla use_rejection_sampling use_relaxed_acceptance_for_thinking
    write_interval
"""
_COMPILE = "enable_fullgraph enable_inductor enable_userbuffers max_num_streams"

TOP_KEYS = frozenset(_TOP.split())
"""Keys at the top of the file."""

INNER_KEYS: Mapping[str, frozenset[str]] = {
    "kv_cache_config": frozenset(_KV_CACHE.split()),
    "lora_config": frozenset(_LORA.split()),
    "speculative_config": frozenset(_SPECULATIVE.split()),
    "torch_compile_config": frozenset(_COMPILE.split()),
}
"""Keys of the mappings among them of which planning reads others."""

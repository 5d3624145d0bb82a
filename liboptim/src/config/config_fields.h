#pragma once

namespace optim {

// The second half of for_each_field: how the optimizer runs, not what it computes.
template <typename Config, typename Visit>
void for_each_running_field(Config& config, Visit& visit) {
  visit("use_distributed_optimizer", config.use_distributed_optimizer);
  visit("use_layer_wise_distributed_optimizer", config.use_layer_wise_distributed_optimizer);
  visit("overlap_param_gather", config.overlap_param_gather);
  visit("overlap_param_gather_with_optimizer_step",
        config.overlap_param_gather_with_optimizer_step);
  visit("optimizer_cpu_offload", config.optimizer_cpu_offload);
  visit("optimizer_offload_fraction", config.optimizer_offload_fraction);
  visit("use_torch_optimizer_for_cpu_offload", config.use_torch_optimizer_for_cpu_offload);
  visit("overlap_cpu_optimizer_d2h_h2d", config.overlap_cpu_optimizer_d2h_h2d);
  visit("pin_cpu_grads", config.pin_cpu_grads);
  visit("pin_cpu_params", config.pin_cpu_params);
  visit("clip_grad", config.clip_grad);
  visit("log_num_zeros_in_grad", config.log_num_zeros_in_grad);
  visit("barrier_with_L1_time", config.barrier_with_L1_time);
  visit("config_logger_dir", config.config_logger_dir);
  visit("optimizer_cuda_graph", config.optimizer_cuda_graph);
}

// Calls visit(name, field) for every field of an OptimizerConfig but `timers`, which is code.
template <typename Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  visit("lr", config.lr);
  visit("min_lr", config.min_lr);
  visit("decoupled_lr", config.decoupled_lr);
  visit("decoupled_min_lr", config.decoupled_min_lr);
  visit("weight_decay", config.weight_decay);
  visit("apply_wd_to_qk_layernorm", config.apply_wd_to_qk_layernorm);
  visit("fp8_recipe", config.fp8_recipe);
  visit("fp16", config.fp16);
  visit("bf16", config.bf16);
  visit("reuse_grad_buf_for_mxfp8_param_ag", config.reuse_grad_buf_for_mxfp8_param_ag);
  visit("params_dtype", config.params_dtype);
  visit("use_precision_aware_optimizer", config.use_precision_aware_optimizer);
  visit("store_param_remainders", config.store_param_remainders);
  visit("main_grads_dtype", config.main_grads_dtype);
  visit("main_params_dtype", config.main_params_dtype);
  visit("exp_avg_dtype", config.exp_avg_dtype);
  visit("exp_avg_sq_dtype", config.exp_avg_sq_dtype);
  visit("optimizer", config.optimizer);
  visit("loss_scale", config.loss_scale);
  visit("initial_loss_scale", config.initial_loss_scale);
  visit("min_loss_scale", config.min_loss_scale);
  visit("loss_scale_window", config.loss_scale_window);
  visit("hysteresis", config.hysteresis);
  visit("adam_beta1", config.adam_beta1);
  visit("adam_beta2", config.adam_beta2);
  visit("adam_eps", config.adam_eps);
  visit("decoupled_weight_decay", config.decoupled_weight_decay);
  visit("sgd_momentum", config.sgd_momentum);
  visit("muon_momentum", config.muon_momentum);
  visit("muon_split_qkv", config.muon_split_qkv);
  visit("muon_nesterov", config.muon_nesterov);
  visit("muon_scale_mode", config.muon_scale_mode);
  visit("muon_fp32_matmul_prec", config.muon_fp32_matmul_prec);
  visit("muon_coefficient_type", config.muon_coefficient_type);
  visit("muon_num_ns_steps", config.muon_num_ns_steps);
  visit("muon_tp_mode", config.muon_tp_mode);
  visit("muon_extra_scale_factor", config.muon_extra_scale_factor);
  visit("muon_scalar_optimizer", config.muon_scalar_optimizer);
  visit("lion_beta1", config.lion_beta1);
  visit("lion_beta2", config.lion_beta2);
  visit("soap_shampoo_beta", config.soap_shampoo_beta);
  visit("soap_precondition_frequency", config.soap_precondition_frequency);
  visit("soap_use_kl_shampoo", config.soap_use_kl_shampoo);
  visit("adaptive_muon_moment2_method", config.adaptive_muon_moment2_method);
  visit("adaptive_muon_beta2", config.adaptive_muon_beta2);
  visit("adaptive_muon_eps", config.adaptive_muon_eps);
  for_each_running_field(config, visit);
}

}  // namespace optim

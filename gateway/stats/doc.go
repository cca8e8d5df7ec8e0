// Package stats keeps one record for each model version, out of which both the
// statistics of the v2 protocol and the metrics come, so the two never disagree.
// Front ends, schedulers and the worker supervisor feed it; it imports none of them.
//
// Counting costs atomic additions and histogram observations on objects that were
// resolved when the record was made: no label is looked up for a request. Text is
// made when somebody scrapes. Everything may be called from any goroutine; locks
// guard lists only and are never held while metrics are sent.
//
// Metrics with the original's names and labels (model, version, metric_tags):
//
//	nv_inference_request_success, nv_inference_request_failure{reason},
//	nv_inference_count, nv_inference_exec_count, nv_inference_pending_request_count,
//	nv_inference_{request,queue,compute_input,compute_infer,compute_output}_duration_us
//	(and …_summary_us when on), nv_model_load_duration_secs,
//	nv_pinned_memory_pool_{total,used}_bytes (0: the gateway pins nothing),
//	nv_cpu_utilization, nv_cpu_memory_{total,used}_bytes,
//	nv_gpu_utilization, nv_gpu_memory_{total,used}_bytes, nv_gpu_power_{usage,limit},
//	nv_energy_consumption {gpu_uuid}, as workers report them; absent without a GPU.
//	with a response cache: nv_cache_num_{hits,misses}_per_model,
//	nv_cache_{hit,miss}_duration_per_model (and …_summary_per_model when on), and of a
//	local one nv_cache_{num_entries,num_lookups,num_hits,num_misses,num_evictions,
//	lookup_duration,insertion_duration,util}.
//
// Unlike the original, requests that a full queue refused count as failures with
// reason REJECTED. Like there, requests that validation refused are no failures; they
// are in sluice_refusals_total with reason "invalid".
//
// Metrics of our own; histograms have classic and native buckets, and exemplars that name
// the trace (label trace_id) of a request whose spans are kept, one a second and bucket:
//
//	sluice_request_duration_seconds{model,version}   from arrival to answer, successes
//	sluice_queue_duration_seconds{model,version}     waiting for an instance
//	sluice_compute_duration_seconds{model,version}   posted to returned, of its batch
//	sluice_batch_size{model,version}                 rows of each execution
//	sluice_refusals_total{model,version,reason}      reason as in the answer's header
//	sluice_instances{model,version}                  that the config asks for
//	sluice_instances_up{model,version}               whose worker serves
//	sluice_instances_busy{model,version}             that have a batch
//	sluice_worker_up{worker}, sluice_worker_restarts_total{worker},
//	sluice_worker_resident_bytes{worker}
//	sluice_cache_lookups_total{level}, and likewise sluice_cache_hits_total,
//	sluice_cache_failures_total, sluice_cache_dropped_total,
//	sluice_cache_lookup_seconds_total
//	sluice_cache_breaker_open{level}                 levels are local and redis
//	sluice_requests_total{protocol,code}             HTTP status or gRPC code name
//	sluice_calls_total{protocol,outcome}             outcome as in the access log
//	sluice_call_refusals_total{protocol,reason}      of calls of any kind, also those
//	                                                 that never got to a model
//	sluice_requests_in_flight{protocol}, sluice_connections{protocol},
//	sluice_connections_accepted_total{protocol}, sluice_body_memory_bytes,
//	sluice_response_memory_bytes, sluice_request_arena_used_bytes
//	sluice_client_memory_{regions,bytes,requests_total}{owner}, by kind of owner, and
//	sluice_client_memory_references                  that requests hold to regions
//	sluice_limit_refusals_total{rule,limit,reason},
//	sluice_limit_shadow_refusals_total{rule,limit,reason}
//	sluice_limit_rules, sluice_limit_meters, and where limits are shared
//	sluice_limit_redis_up, sluice_limit_redis_exchanges_total,
//	sluice_limit_redis_failures_total, sluice_limit_redis_late_total,
//	sluice_limit_redis_foreign_keys_total
//	sluice_config_last_reload_successful{config}, sluice_config_reloads_total{config,result},
//	sluice_config_last_reload_timestamp_seconds{config}
//	sluice_certificate_not_after_timestamp_seconds{use}
//	sluice_xds_envoys, sluice_xds_rejected_updates_total, sluice_xds_held_routes,
//	sluice_picker_picks_total{why}                   where the control plane runs here
//	sluice_ready, sluice_build_info{version,go_version,revision}
//	sluice_traces_dropped_total
//	sluice_log_lines_total{level}, sluice_log_lost_total{level,why}, why is rate (the
//	                                                 bound of lines a second) or write
//	sluice_access_log_lines_total, sluice_access_log_lost_total   with an access log
//	sluice_principal_requests_total{principal,outcome},
//	sluice_principal_compute_seconds_total{principal},
//	sluice_principal_received_bytes_total{principal},
//	sluice_principal_sent_bytes_total{principal}     where asked for, of the first N
//
// OpenMetrics wants counters to end in _total and its encoder would rename those of the
// original, so they have no type in that format; names are the same in all of them.
//
// beside the usual go_… and process_… of the gateway process.
package stats

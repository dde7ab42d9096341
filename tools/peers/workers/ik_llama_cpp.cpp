// ik_llama.cpp through its C interface, for ik_llama_cpp_worker.py, which writes the lines below.
//
//     ik_llama_cpp MODEL THREADS CONTEXT REPACK BATCH
//
// generate MAX_TOKENS STOPS STOP... TOKENS TOKEN...  -> PREFILL_SECONDS DECODE_SECONDS TOKEN...
// score TOKENS TOKEN...                              -> negative log-likelihoods but of the first
//
// The first line, before any request: its VERSION and the system information. What fails ends the
// program.

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Tokens = std::vector<llama_token>;

double now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

Tokens read_tokens() {
  size_t count = 0;
  std::cin >> count;
  Tokens tokens(count);
  for (llama_token& token : tokens) std::cin >> token;
  return tokens;
}

struct Engine {
  llama_context* context;
  int vocabulary, batch_rows;

  // One forward behind `start` cached tokens; logits of the last row, or of all.
  void decode(llama_token* tokens, int count, int start, bool all) const {
    llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int row = 0; row < count; ++row) {
      batch.token[row] = tokens[row];
      batch.pos[row] = start + row;
      batch.n_seq_id[row] = 1;
      batch.seq_id[row][0] = 0;
      batch.logits[row] = all || row == count - 1;
    }
    if (llama_decode(context, batch) != 0) {
      std::fprintf(stderr, "error: llama_decode failed\n");
      std::exit(1);
    }
    llama_batch_free(batch);
  }

  llama_token best(int row) const {
    const float* logits = llama_get_logits_ith(context, row);
    return static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
  }

  void generate() const {
    int limit = 0;
    std::cin >> limit;
    const Tokens stops = read_tokens();
    Tokens prompt = read_tokens(), out;
    const int length = static_cast<int>(prompt.size());
    llama_kv_cache_clear(context);
    const double begin = now();
    int last = 0;
    for (int start = 0; start < length; start += batch_rows) {
      last = std::min(batch_rows, length - start);
      decode(prompt.data() + start, last, start, false);
    }
    out.push_back(best(last - 1));
    const double first = now();
    while (static_cast<int>(out.size()) < limit &&
           std::find(stops.begin(), stops.end(), out.back()) == stops.end()) {
      decode(&out.back(), 1, length + static_cast<int>(out.size()) - 1, false);
      out.push_back(best(0));
    }
    std::printf("%.9f %.9f", first - begin, now() - first);
    for (const llama_token token : out) std::printf(" %d", token);
  }

  void score() const {
    Tokens tokens = read_tokens();
    llama_kv_cache_clear(context);
    const int length = static_cast<int>(tokens.size());
    for (int start = 0; start < length; start += batch_rows) {
      const int rows = std::min(batch_rows, length - start);
      decode(tokens.data() + start, rows, start, true);
      for (int row = 0; row < rows && start + row + 1 < length; ++row) {
        const float* logits = llama_get_logits_ith(context, row);
        const double top = *std::max_element(logits, logits + vocabulary);
        double sum = 0;
        for (int token = 0; token < vocabulary; ++token) sum += std::exp(logits[token] - top);
        std::printf("%.9f ", top + std::log(sum) - logits[tokens[start + row + 1]]);
      }
    }
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  const int threads = std::atoi(arguments[2]), batch_rows = std::atoi(arguments[5]);
  llama_backend_init();
  llama_model_params model_options = llama_model_default_params();
  // Its own program's defaults: flash attention, and -rtr 1 where it is asked for.
  llama_context_params options = llama_context_default_params();
  options.flash_attn = model_options.flash_attn = true;
  model_options.repack_tensors = std::atoi(arguments[4]) != 0;
  model_options.use_mmap = !model_options.repack_tensors;
  options.n_ctx = static_cast<uint32_t>(std::atoi(arguments[3]));
  options.n_batch = options.n_ubatch = static_cast<uint32_t>(batch_rows);
  options.n_threads = options.n_threads_batch = static_cast<uint32_t>(threads);
  llama_model* model = llama_model_load_from_file(arguments[1], model_options);
  llama_context* context = model ? llama_init_from_model(model, options) : nullptr;
  if (!context) return 1;
  const Engine engine{context, llama_n_vocab(model), batch_rows};
  std::printf("%s %s\n", VERSION, llama_print_system_info());
  std::fflush(stdout);
  for (std::string what; std::cin >> what;) {
    what == "score" ? engine.score() : engine.generate();
    std::printf("\n");
    std::fflush(stdout);
  }
}

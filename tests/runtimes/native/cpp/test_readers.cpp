// Threads that read answers of one engine, as edge/engine/readers.py has it: whoever waits for a token runs a step for all
// answers, and one of them is aborted meanwhile. Run under the thread sanitizer by ../sanitize.sh.
#include "decoder.hpp"
#include "expect.hpp"
#include "sampling.hpp"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

using namespace dsedge;
using namespace dsedge::test;

namespace {

constexpr int64_t kSlots = 64;  // of an answer
constexpr size_t kAnswers = 5, kNew = 24;

struct Answer {
  std::vector<int32_t> tokens;
  size_t prompt = 0, fed = 0;
  int64_t base = 0; // of its slots
  bool aborted = false;
  std::unique_ptr<Sampler> sampler;

  bool over() const { return aborted || tokens.size() == prompt + kNew; }
};

class Answers {
public:
  Answers() : engine_(program(), *find_kernels(""), 3) { fill(engine_); }

  Answer &add(size_t number) {
    auto answer = std::make_unique<Answer>();
    for (size_t n = 0; n < 3 + 4 * number; ++n)
      answer->tokens.push_back(static_cast<int32_t>((7 * number + 3 * n) % kVocab));
    answer->prompt = answer->tokens.size();
    answer->base = kSlots * static_cast<int64_t>(number);
    SamplingRule rule;
    rule.temperature = 3;
    rule.repetition = 1.1;
    rule.seed = number;
    rule.end = kVocab;
    answer->sampler = std::make_unique<Sampler>(rule, *find_kernels(""));
    answer->sampler->prompt(answer->tokens);
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
    return *answers_.back();
  }

  // Waits for token `number` of an answer; false: it is over without it.
  bool wait(const Answer &answer, size_t number) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (answer.tokens.size() > answer.prompt + number)
        return true;
      if (answer.over())
        return false;
      if (stepping_) {
        changed_.wait(lock);
        continue;
      }
      stepping_ = true;
      lock.unlock();
      step();
      lock.lock();
      stepping_ = false;
      changed_.notify_all();
    }
  }

  void abort(Answer &answer) {
    const std::lock_guard lock(mutex_);
    answer.aborted = true;
    changed_.notify_all();
  }

  std::vector<int32_t> made(const Answer &answer) {
    const std::lock_guard lock(mutex_);
    return {answer.tokens.begin() + static_cast<std::ptrdiff_t>(answer.prompt), answer.tokens.end()};
  }

private:
  static Program program() {
    Program p = make_program();
    p.kv.rings = {{kSlots * static_cast<int64_t>(kAnswers), kSlots}};
    return p;
  }

  void step() {
    std::vector<Answer *> going;
    std::vector<int32_t> tokens;
    std::vector<std::vector<int64_t>> runs;
    Forward f;
    f.rows = 0;
    {
      const std::lock_guard lock(mutex_);
      for (const auto &answer : answers_)
        if (!answer->over()) {
          const int64_t first = static_cast<int64_t>(answer->fed), count = static_cast<int64_t>(answer->tokens.size()) - first;
          going.push_back(answer.get());
          tokens.insert(tokens.end(), answer->tokens.begin() + static_cast<std::ptrdiff_t>(first), answer->tokens.end());
          runs.push_back({0, answer->base, first + count});
          f.segments.push_back({f.rows, count, first, {}});
          f.rows += count;
          f.wanted.push_back(f.rows - 1);
        }
    }
    for (size_t n = 0; n < going.size(); ++n)
      f.segments[n].rings = {{runs[n].data(), 1, kSlots, 0}};
    const size_t pairs = tokens.size() * static_cast<size_t>(engine_.program().ropes[0]);
    const std::vector<float> cos(pairs, 0.8f), sin(pairs, 0.6f);
    std::vector<float> logits(going.size() * kVocab);
    f.tokens = tokens.data();
    f.angles = {{cos.data(), sin.data()}};
    f.logits = logits.data();
    engine_.forward(f);
    const std::lock_guard lock(mutex_);
    for (size_t n = 0; n < going.size(); ++n) {
      Answer &answer = *going[n];
      answer.fed = answer.tokens.size();
      const int32_t token = answer.sampler->sample(logits.data() + n * kVocab, nullptr);
      expect(token >= 0, "logits are finite");
      answer.sampler->accept(token);
      answer.tokens.push_back(token);
    }
  }

  Engine engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stepping_ = false;
  std::vector<std::unique_ptr<Answer>> answers_;
};

std::vector<int32_t> alone(size_t number) {
  Answers answers;
  Answer &answer = answers.add(number);
  for (size_t n = 0; answers.wait(answer, n); ++n)
    continue;
  return answers.made(answer);
}

void test_readers_get_what_each_gets_alone() {
  std::vector<std::vector<int32_t>> expected;
  for (size_t number = 0; number < kAnswers; ++number)
    expected.push_back(alone(number));
  for (int round = 0; round < 4; ++round) {
    Answers answers;
    std::vector<std::vector<int32_t>> found(kAnswers);
    std::vector<std::thread> readers;
    for (size_t number = 0; number < kAnswers; ++number)
      readers.emplace_back([&, number] {
        Answer &answer = answers.add(number); // while others go on
        for (size_t n = 0; answers.wait(answer, n); ++n)
          if (number == 2 && n == 5)
            answers.abort(answer);
        found[number] = answers.made(answer);
      });
    for (std::thread &reader : readers)
      reader.join();
    for (size_t number = 0; number < kAnswers; ++number) {
      expect(found[number].size() == kNew || (number == 2 && found[number].size() >= 6), "an answer goes to its end");
      expect(std::equal(found[number].begin(), found[number].end(), expected[number].begin()),
             "an answer's tokens are those that it gets alone");
    }
  }
}

} // namespace

int main() {
  test_readers_get_what_each_gets_alone();
  std::puts("all passed");
  return 0;
}

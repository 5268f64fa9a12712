#include "facts.hpp"

#include <algorithm>
#include <cstring>

namespace dledger {
namespace {

std::vector<std::string> catalogue;
std::vector<ProblemCode> first_of;

std::string value_of(const std::string& field, const Fact& fact, const std::string& name) {
  if (field == "name") return name;
  if (field == "reason") return std::strerror(static_cast<int>(fact.also_found));
  if (field == "at") return std::to_string(fact.at);
  if (field == "expected") return std::to_string(fact.expected);
  if (field == "found") return std::to_string(fact.found);
  return std::to_string(field == "also_expected" ? fact.also_expected : fact.also_found);
}

}  // namespace

std::vector<std::string> problem_names() {
#define DLEDGER_NAME(name) #name,
  return {DLEDGER_PROBLEM_CODES(DLEDGER_NAME)};
#undef DLEDGER_NAME
}

void set_catalogue(const std::vector<std::string>& findings, const std::vector<std::string>& sentences) {
  catalogue = sentences;
  first_of.clear();
  for (size_t i = 0; i < std::min<size_t>(findings.size(), kProblemCodes - 1); i++) {
    const auto first = std::find(findings.begin(), findings.end(), findings[i]) - findings.begin();
    first_of.push_back(static_cast<ProblemCode>(first + 1));
  }
}

ProblemCode finding_of(ProblemCode code) {
  const auto number = static_cast<size_t>(code);
  return number > 0 && number <= first_of.size() ? first_of[number - 1] : code;
}

std::string sentence(const Fact& fact, const std::string& name) {
  const auto number = static_cast<size_t>(fact.code);
  if (number == 0 || number > catalogue.size()) return "expected no problem, found " + std::to_string(number);
  const std::string& form = catalogue[number - 1];
  std::string text;
  for (size_t at = 0; at < form.size();) {
    const size_t open = form.find('{', at), close = form.find('}', open);
    text.append(form, at, open == std::string::npos ? open : open - at);
    if (close == std::string::npos) break;
    text += value_of(form.substr(open + 1, close - open - 1), fact, name);
    at = close + 1;
  }
  return text;
}

}  // namespace dledger

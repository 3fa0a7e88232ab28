#pragma once

#include <gmpxx.h>
#include <mpfr.h>

namespace sluice::math {

// A number of 256 bits, as an MPFR variable that frees itself. One thread at a time.
class Real {
 public:
  static constexpr mpfr_prec_t kBits = 256;

  Real() {
    mpfr_init2(value_, kBits);
    mpfr_set_zero(value_, 1);
  }
  explicit Real(double value) {
    mpfr_init2(value_, kBits);
    mpfr_set_d(value_, value, MPFR_RNDN);
  }
  explicit Real(const mpq_class& value) {
    mpfr_init2(value_, kBits);
    mpfr_set_q(value_, value.get_mpq_t(), MPFR_RNDN);
  }
  Real(const Real& other) {
    mpfr_init2(value_, kBits);
    mpfr_set(value_, other.value_, MPFR_RNDN);
  }
  Real& operator=(const Real& other) {
    mpfr_set(value_, other.value_, MPFR_RNDN);
    return *this;
  }
  ~Real() { mpfr_clear(value_); }

  mpfr_ptr get() { return value_; }
  mpfr_srcptr get() const { return value_; }
  bool IsZero() const { return mpfr_zero_p(value_) != 0; }
  bool IsNegative() const { return mpfr_sgn(value_) < 0; }
  // The exponent of two, or a very small one for zero.
  long Exponent() const { return mpfr_regular_p(value_) ? mpfr_get_exp(value_) : -1'000'000'000; }
  // Neither infinite nor so large or small that the next operations would be slow.
  bool IsTame() const {
    return IsZero() ||
           (mpfr_number_p(value_) != 0 && Exponent() < kMaxExponent && Exponent() > -kMaxExponent);
  }
  static constexpr long kMaxExponent = 1'000'000;

 private:
  mpfr_t value_;
};

}  // namespace sluice::math

/*
 * std::complex for the functions of jiterator: the part of C++'s that PyTorch's jiterator has, without any header of the
 * standard library. Functions have no __device__, since jiterator's source is compiled for the device by default.
 *
 * Unlike C++'s, arithmetic takes operands of mixed types: complex<float> * 2 and complex<float> + complex<double>. A
 * product with infinities is not corrected as Annex G of the C standard does.
 */
#ifndef WEIR_COMPLEX_H
#define WEIR_COMPLEX_H

namespace std {

/* complex<float> converts to complex<double> implicitly. The others need a type here that nothing converts to. */
template <class R> struct weir_wider { typedef int type; };
template <> struct weir_wider<float> { typedef double type; };
template <> struct weir_wider<int> { typedef double type; };

template <class R> struct complex {
  typedef R value_type;
  typedef complex<typename weir_wider<R>::type> wider;
  R re, im;

  constexpr complex(R re = R(), R im = R()) : re(re), im(im) {}
  template <class S> constexpr explicit complex(const complex<S> &from) : re(R(from.re)), im(R(from.im)) {}
  constexpr operator wider() const { return wider(re, im); }
  constexpr R real() const { return re; }
  constexpr R imag() const { return im; }
  void real(R value) { re = value; }
  void imag(R value) { im = value; }
  constexpr explicit operator bool() const { return re != 0 || im != 0; }

  complex &operator+=(complex b) { return *this = *this + b; }
  complex &operator-=(complex b) { return *this = *this - b; }
  complex &operator*=(complex b) { return *this = *this * b; }
  complex &operator/=(complex b) { return *this = *this / b; }

  friend complex operator+(complex a) { return a; }
  friend complex operator-(complex a) { return complex(-a.re, -a.im); }
  friend complex operator+(complex a, complex b) { return complex(a.re + b.re, a.im + b.im); }
  friend complex operator-(complex a, complex b) { return complex(a.re - b.re, a.im - b.im); }
  friend complex operator*(complex a, complex b) {
    return complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
  }
  /* Smith's method, which overflows only if the result does. */
  friend complex operator/(complex a, complex b) {
    if (::fabs(b.re) >= ::fabs(b.im)) {
      if (b.re == 0 && b.im == 0)
        return complex(a.re / ::fabs(b.re), a.im / ::fabs(b.im));
      R ratio = b.im / b.re, scale = R(1) / (b.re + b.im * ratio);
      return complex((a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale);
    }
    R ratio = b.re / b.im, scale = R(1) / (b.re * ratio + b.im);
    return complex((a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale);
  }
  friend bool operator==(complex a, complex b) { return a.re == b.re && a.im == b.im; }
  friend bool operator!=(complex a, complex b) { return !(a == b); }
};

/* real, imag, arg, norm and conj also take real numbers, as in C++. */
template <class R> R real(complex<R> z) { return z.re; }
template <class R> R imag(complex<R> z) { return z.im; }
template <class R> R abs(complex<R> z) { return ::hypot(z.re, z.im); }
template <class R> R arg(complex<R> z) { return ::atan2(z.im, z.re); }
template <class R> R norm(complex<R> z) { return z.re * z.re + z.im * z.im; }
template <class R> complex<R> conj(complex<R> z) { return complex<R>(z.re, -z.im); }
inline float real(float x) { return x; }
inline double real(double x) { return x; }
inline float imag(float) { return 0; }
inline double imag(double) { return 0; }
inline float arg(float x) { return ::atan2(0.0f, x); }
inline double arg(double x) { return ::atan2(0.0, x); }
inline float norm(float x) { return x * x; }
inline double norm(double x) { return x * x; }
inline complex<float> conj(float x) { return x; }
inline complex<double> conj(double x) { return x; }

template <class R> bool isnan(complex<R> z) { return z.re != z.re || z.im != z.im; }
template <class R> bool isfinite(complex<R> z) { return z.re - z.re == 0 && z.im - z.im == 0; }
template <class R> bool isinf(complex<R> z) {
  return (z.re == z.re && z.re - z.re != 0) || (z.im == z.im && z.im - z.im != 0);
}
template <class R> complex<R> proj(complex<R> z) {
  return isinf(z) ? complex<R>(R(1) / R(0), ::copysign(R(0), z.im)) : z;
}
template <class R> complex<R> polar(R size, R angle = R()) {
  return complex<R>(size * ::cos(angle), size * ::sin(angle));
}

template <class R> complex<R> exp(complex<R> z) {
  R size = ::exp(z.re);
  return z.im == 0 ? complex<R>(size, z.im) : complex<R>(size * ::cos(z.im), size * ::sin(z.im));
}
template <class R> complex<R> log(complex<R> z) { return complex<R>(::log(abs(z)), arg(z)); }
template <class R> complex<R> log2(complex<R> z) { return log(z) * R(1.4426950408889634); }
template <class R> complex<R> log10(complex<R> z) { return log(z) * R(0.4342944819032518); }
template <class R> complex<R> sqrt(complex<R> z) {
  R size = abs(z);
  if (size == 0)
    return complex<R>(0, z.im);
  R half = ::sqrt((size + ::fabs(z.re)) / 2), other = ::fabs(z.im) / (2 * half);
  return z.re >= 0 ? complex<R>(half, ::copysign(other, z.im)) : complex<R>(other, ::copysign(half, z.im));
}
template <class R> complex<R> pow(complex<R> a, complex<R> b) {
  if (!b)
    return R(1);
  return a ? exp(b * log(a)) : complex<R>();
}
template <class R> complex<R> pow(complex<R> a, typename complex<R>::value_type b) { return pow(a, complex<R>(b)); }
template <class R> complex<R> pow(typename complex<R>::value_type a, complex<R> b) { return pow(complex<R>(a), b); }

template <class R> complex<R> sinh(complex<R> z) {
  return complex<R>(::sinh(z.re) * ::cos(z.im), ::cosh(z.re) * ::sin(z.im));
}
template <class R> complex<R> cosh(complex<R> z) {
  return complex<R>(::cosh(z.re) * ::cos(z.im), ::sinh(z.re) * ::sin(z.im));
}
template <class R> complex<R> tanh(complex<R> z) {
  if (::fabs(z.re) > 22) /* the other terms are below the precision of R, and cosh may overflow */
    return complex<R>(::copysign(R(1), z.re), 0);
  R divisor = ::cosh(2 * z.re) + ::cos(2 * z.im);
  return complex<R>(::sinh(2 * z.re) / divisor, ::sin(2 * z.im) / divisor);
}
/* The function is odd: in the right half-plane the sum does not cancel. */
template <class R> complex<R> asinh(complex<R> z) {
  complex<R> right = z.re < 0 ? -z : z, result = log(right + sqrt(right * right + R(1)));
  return complex<R>(::copysign(result.re, z.re), ::copysign(result.im, z.im));
}
template <class R> complex<R> acosh(complex<R> z) { return log(z + sqrt(z + R(1)) * sqrt(z - R(1))); }
template <class R> complex<R> atanh(complex<R> z) { return log((R(1) + z) / (R(1) - z)) * R(0.5); }

/* f(z) is computed as -i g(i z). */
template <class R> complex<R> weir_turn(complex<R> z) { return complex<R>(-z.im, z.re); }
template <class R> complex<R> weir_turn_back(complex<R> z) { return complex<R>(z.im, -z.re); }
template <class R> complex<R> sin(complex<R> z) { return weir_turn_back(sinh(weir_turn(z))); }
template <class R> complex<R> cos(complex<R> z) { return cosh(weir_turn(z)); }
template <class R> complex<R> tan(complex<R> z) { return weir_turn_back(tanh(weir_turn(z))); }
template <class R> complex<R> asin(complex<R> z) { return weir_turn_back(asinh(weir_turn(z))); }
template <class R> complex<R> acos(complex<R> z) { return R(1.5707963267948966) - asin(z); }
template <class R> complex<R> atan(complex<R> z) { return weir_turn_back(atanh(weir_turn(z))); }

} // namespace std

/* A scalar parameter of a function whose T is complex: it becomes what the function declares. */
struct weir_scalar {
  double re, im;
  template <class R> operator std::complex<R>() const { return std::complex<R>(R(re), R(im)); }
  operator bool() const { return re != 0 || im != 0; }
  operator int() const { return int(re); }
  operator long long() const { return (long long)re; }
  operator float() const { return float(re); }
  operator double() const { return re; }
};

#endif

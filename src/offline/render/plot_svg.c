#include "offline/render/plot_svg.h"

#include <string.h>

#include "base/text.h"

/* After Okabe and Ito, with a darker yellow. */
static const weir__svg_colors light = {
    .background = "#ffffff",
    .text = "#1b1f24",
    .muted = "#59636e",
    .grid = "#e4e7eb",
    .axis = "#8b949e",
    .free = "#eef1f4",
    .reserved = "#3d4650",
    .alarm = "#b3261e",
    .series = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a300", "#a9b1ba"},
    .ink = {"#ffffff", "#1b1f24", "#ffffff", "#1b1f24", "#1b1f24", "#ffffff", "#1b1f24", "#1b1f24"}};

static const weir__svg_colors dark = {
    .background = "#0f141a",
    .text = "#e6edf3",
    .muted = "#9aa5b1",
    .grid = "#242b33",
    .axis = "#59636e",
    .free = "#1d242c",
    .reserved = "#c9d1d9",
    .alarm = "#ff7b72",
    .series = {"#3b9ddd", "#f0b429", "#19b88a", "#dd93bd", "#8fd0f5", "#ee7a33", "#d6c62a", "#69737e"},
    .ink = {"#0f141a", "#0f141a", "#0f141a", "#0f141a", "#0f141a", "#0f141a", "#0f141a", "#ffffff"}};

const weir__svg_colors *weir__svg_colors_of(bool is_dark) { return is_dark ? &dark : &light; }

void weir__svg_number(weir__svg *svg, double value) {
  if (!(value > -1e15 && value < 1e15)) /* or not a number */
    value = 0;
  long tenths = (long)(value < 0 ? value * 10 - 0.5 : value * 10 + 0.5);
  if (tenths < 0) {
    fputc('-', svg->file);
    tenths = -tenths;
  }
  char digits[24];
  int at = sizeof digits;
  if (tenths % 10) {
    digits[--at] = (char)('0' + tenths % 10);
    digits[--at] = '.';
  }
  long whole = tenths / 10;
  do
    digits[--at] = (char)('0' + whole % 10);
  while (whole /= 10);
  fwrite(digits + at, 1, sizeof digits - (size_t)at, svg->file);
}

static bool is_allowed(uint32_t code) { return weir__is_printable(code) && code != 0xfffe && code != 0xffff; }

void weir__svg_escaped(weir__svg *svg, const char *text, size_t most) {
  size_t count = 0;
  uint32_t code;
  for (size_t bytes; *text; text += bytes) {
    if (most && ++count > most) {
      fputs("\u2026", svg->file);
      return;
    }
    bytes = weir__utf8_length(text, &code);
    if (!bytes || !is_allowed(code)) {
      bytes = bytes ? bytes : 1;
      fputs("\ufffd", svg->file);
      continue;
    }
    switch (*text) {
    case '&':
      fputs("&amp;", svg->file);
      break;
    case '<':
      fputs("&lt;", svg->file);
      break;
    case '>':
      fputs("&gt;", svg->file);
      break;
    case '"':
      fputs("&quot;", svg->file);
      break;
    case '\'':
      fputs("&#39;", svg->file);
      break;
    default:
      fwrite(text, 1, bytes, svg->file);
    }
  }
}

double weir__svg_text_width(const char *text) {
  double width = 0;
  for (; *text; text++) {
    if ((*text & 0xc0) == 0x80) /* in a character */
      continue;
    width += strchr("iljtfrI.,:;'|()[] ", *text) ? 4.3 : strchr("mwMW@%", *text) ? 10.6 : 7.2;
  }
  return width;
}

static void begin_text(weir__svg *svg, double x, double y, weir__svg_anchor anchor, const char *style,
                       const char *color) {
  fputs("<text x=\"", svg->file);
  weir__svg_number(svg, x);
  fputs("\" y=\"", svg->file);
  weir__svg_number(svg, y);
  fprintf(svg->file, "\" class=\"%s\"", style);
  if (color)
    fprintf(svg->file, " style=\"fill:%s\"", color);
  fprintf(svg->file, "%s>",
          anchor == WEIR__SVG_START    ? ""
          : anchor == WEIR__SVG_MIDDLE ? " text-anchor=\"middle\""
                                       : " text-anchor=\"end\"");
}

void weir__svg_text(weir__svg *svg, double x, double y, weir__svg_anchor anchor, const char *style, const char *text) {
  begin_text(svg, x, y, anchor, style, NULL);
  weir__svg_escaped(svg, text, 0);
  fputs("</text>\n", svg->file);
}

void weir__svg_text_colored(weir__svg *svg, double x, double y, weir__svg_anchor anchor, const char *style,
                            const char *color, const char *text) {
  begin_text(svg, x, y, anchor, style, color);
  weir__svg_escaped(svg, text, 0);
  fputs("</text>\n", svg->file);
}

void weir__svg_text_within(weir__svg *svg, double x, double y, double width, const char *style, const char *text) {
  size_t most = 0;
  double all = weir__svg_text_width(text);
  if (all > width) {
    char part[512];
    snprintf(part, sizeof part, "%s", text);
    most = strlen(part);
    while (most > 1 && weir__svg_text_width(part) + 8 > width)
      part[--most] = 0;
    for (size_t i = 0, bytes = most; i < bytes; i++) /* characters, not bytes */
      most -= (part[i] & 0xc0) == 0x80;
  }
  begin_text(svg, x, y, WEIR__SVG_START, style, NULL);
  weir__svg_escaped(svg, text, most);
  fputs("</text>\n", svg->file);
}

void weir__svg_line(weir__svg *svg, double x1, double y1, double x2, double y2, const char *color, const char *more) {
  fputs("<path d=\"M", svg->file);
  weir__svg_number(svg, x1);
  fputc(' ', svg->file);
  weir__svg_number(svg, y1);
  fputc('L', svg->file);
  weir__svg_number(svg, x2);
  fputc(' ', svg->file);
  weir__svg_number(svg, y2);
  fprintf(svg->file, "\" stroke=\"%s\" %s/>\n", color, more);
}

void weir__svg_rect(weir__svg *svg, double x, double y, double width, double height, const char *fill,
                    const char *more) {
  fputs("<rect x=\"", svg->file);
  weir__svg_number(svg, x);
  fputs("\" y=\"", svg->file);
  weir__svg_number(svg, y);
  fputs("\" width=\"", svg->file);
  weir__svg_number(svg, width);
  fputs("\" height=\"", svg->file);
  weir__svg_number(svg, height);
  fprintf(svg->file, "\" fill=\"%s\" %s/>\n", fill, more);
}

void weir__svg_box(weir__svg *svg, double x, double y, double width, double height) {
  fputc('M', svg->file);
  weir__svg_number(svg, x);
  fputc(' ', svg->file);
  weir__svg_number(svg, y);
  fputc('h', svg->file);
  weir__svg_number(svg, width);
  fputc('v', svg->file);
  weir__svg_number(svg, height);
  fputc('h', svg->file);
  weir__svg_number(svg, -width);
  fputc('z', svg->file);
}

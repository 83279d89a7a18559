/*
 * Writes the elements of an SVG document. Coordinates are in pixels, with one decimal. Text from recordings is escaped,
 * and what XML does not allow is replaced.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/base.h"

enum { WEIR__SVG_SERIES = 8 }; /* the last is for the rest */

typedef struct weir__svg_colors {
  const char *background, *text, *muted, *grid, *axis, *free, *reserved, *alarm;
  const char *series[WEIR__SVG_SERIES];
  const char *ink[WEIR__SVG_SERIES]; /* of text on them */
} weir__svg_colors;

/* Colours that differ in brightness as well, for print and for colour-blind readers. */
const weir__svg_colors *weir__svg_colors_of(bool is_dark);

typedef enum weir__svg_anchor { WEIR__SVG_START, WEIR__SVG_MIDDLE, WEIR__SVG_END } weir__svg_anchor;

typedef struct weir__svg {
  FILE *file;
  const weir__svg_colors *colors;
} weir__svg;

/* A number as short as possible. */
void weir__svg_number(weir__svg *svg, double value);

/* Text with &, <, > and quotes escaped. Of a longer text, the first `most` characters and an ellipsis; 0 for all. */
void weir__svg_escaped(weir__svg *svg, const char *text, size_t most);

/* `style` is a class of the document's style: "title", "muted", "label", ... */
void weir__svg_text(weir__svg *svg, double x, double y, weir__svg_anchor anchor, const char *style, const char *text);

/* The same in a colour. */
void weir__svg_text_colored(weir__svg *svg, double x, double y, weir__svg_anchor anchor, const char *style,
                            const char *color, const char *text);

/* The same as weir__svg_text, cut to a width. */
void weir__svg_text_within(weir__svg *svg, double x, double y, double width, const char *style, const char *text);

void weir__svg_line(weir__svg *svg, double x1, double y1, double x2, double y2, const char *color, const char *more);
void weir__svg_rect(weir__svg *svg, double x, double y, double width, double height, const char *fill,
                    const char *more);

/* A rectangle as a part of a path. */
void weir__svg_box(weir__svg *svg, double x, double y, double width, double height);

/* The width of a text at a size of 12 pixels, estimated. */
double weir__svg_text_width(const char *text);

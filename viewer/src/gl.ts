// Draws rectangles with WebGL2, from integer textures that never change while the window moves: the vertex shader reads
// the rectangle of each vertex. (Instanced drawing would be the same in fewer lines, but WebGL in software draws each
// instance as if it were a call of its own, which is ten times slower.) The origin of the window is subtracted in
// integers, so a window of a few entries out of billions is exact. Small rectangles come as an image from raster.ts.
import { PER_ROW, WORDS, type Tile } from "./blocks";
import type { Segments } from "./recording";
import { rgb } from "./colors";
import type { Raster } from "./raster";

const VERTEX = `#version 300 es
precision highp float;
precision highp int;
precision highp usampler2D;
uniform usampler2D rects;
uniform usampler2D matches;
uniform uvec2 origin;
uniform vec2 fraction;
uniform vec2 scale;
uniform vec2 size;
uniform int mode;
uniform int filtered;
uniform uint marked;
uniform vec4 plain;
uniform usampler2D keys;
uniform sampler2D palette;
flat out vec4 box;
flat out vec4 color;
flat out float waits;

float from_origin(uint v, uint o) { return v >= o ? float(v - o) : -float(o - v); }

// Exact: the exponent of a number below 2^24 as a float.
uint log2_of(uint v) {
  uint high = v >> 16;
  return high != 0u ? (floatBitsToUint(float(high)) >> 23) - 111u : (floatBitsToUint(float(v)) >> 23) - 127u;
}

void main() {
  int number = gl_VertexID >> 2;
  ivec2 at = ivec2((number & 1023) * 2, number >> 10);
  uvec4 rect = texelFetch(rects, at, 0);
  uvec4 info = mode < 0 ? uvec4(0u) : texelFetch(rects, at + ivec2(1, 0), 0);
  vec2 a = (vec2(from_origin(rect.x, origin.x), from_origin(rect.z, origin.y)) - fraction) * scale;
  vec2 b = (vec2(from_origin(rect.y, origin.x), from_origin(rect.z + rect.w, origin.y)) - fraction) * scale;
  float pending = mode < 0 ? 0.0 : float(info.w) * scale.x;
  waits = pending > 0.0 ? b.x - pending : 1e9;
  a = clamp(a, vec2(-8.0), size + 8.0);
  b = clamp(b, vec2(-8.0), size + 8.0);
  vec2 extent = b - a;
  float cover = min(extent.x, 1.0) * min(extent.y, 1.0);
  // What is smaller than a pixel fills the pixel in part; everything else ends at whole pixels.
  vec2 low = vec2(extent.x < 1.0 ? floor(a.x) : round(a.x), extent.y < 1.0 ? floor(a.y) : round(a.y));
  vec2 high = vec2(extent.x < 1.0 ? low.x + 1.0 : round(b.x), extent.y < 1.0 ? low.y + 1.0 : round(b.y));
  box = vec4(low, high);
  if (mode < 0) {
    color = plain;
  } else {
    uint key;
    if (mode == 0) key = info.x;
    else if (mode == 1) key = rect.w <= 1u ? 9u : log2_of(rect.w - 1u) + 10u;
    else if (mode == 2) key = info.y & 0xffffu;
    else if (mode == 3) key = info.y >> 16;
    else if (mode == 4) key = info.z & 0xffffu;
    else key = (info.z >> 16) & 0xffu;
    uint place = texelFetch(keys, ivec2(int(key & 4095u), int(key >> 12)), 0).r;
    color = vec4(texelFetch(palette, ivec2(int(place), 0), 0).rgb, 1.0);
    bool dim = filtered == 1 && texelFetch(matches, ivec2(number & 1023, number >> 10), 0).r == 0u;
    if (marked != 0xffffffffu && info.x != marked) dim = true;
    if (dim) color.a = 0.13;
  }
  color.a *= clamp(cover, 0.0, 1.0);
  vec2 corner = vec2(float(gl_VertexID & 1), float((gl_VertexID >> 1) & 1));
  if (cover <= 0.0) high = low;
  vec2 p = mix(low, high, corner) / size * 2.0 - 1.0;
  gl_Position = vec4(p, 0.0, 1.0);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
flat in vec4 box;
flat in vec4 color;
flat in float waits;
uniform vec3 edge;
uniform float density;
out vec4 result;
void main() {
  vec4 c = color;
  vec2 f = gl_FragCoord.xy;
  vec2 extent = box.zw - box.xy;
  if (f.x > waits && mod(f.x + f.y, 6.0 * density) < 3.0 * density) c.rgb = mix(c.rgb, edge, 0.55);
  if (extent.x > 3.0 * density && extent.y > 3.0 * density && (box.z - f.x < density || box.w - f.y < density))
    c.rgb = mix(c.rgb, edge, 0.6);
  result = vec4(c.rgb * c.a, c.a);
}`;

const COVER_VERTEX = `#version 300 es
precision highp float;
uniform vec4 place;
out vec2 at;
void main() {
  vec2 corner = vec2(float(gl_VertexID & 1), float(gl_VertexID >> 1));
  at = corner;
  gl_Position = vec4(mix(place.xy, place.zw, corner), 0.0, 1.0);
}`;

const COVER_FRAGMENT = `#version 300 es
precision highp float;
in vec2 at;
uniform sampler2D cover;
uniform vec3 tint;
out vec4 result;
uniform int image;
void main() {
  vec4 c = texture(cover, at);
  result = image == 1 ? c : vec4(tint * c.r, c.r);
}`;

export interface Window {
  x0: number;
  x1: number;
  y0: number;
  y1: number;
}

export interface Look {
  density: number; // device pixels of a CSS pixel
  background: string;
  segment: string;
  hidden: string;
  height: number; // of the recording
  entries: number;
  isFiltered: boolean;
  marked: number; // the only stack that is not dimmed, or 0xffffffff
}

const MODES = ["stack", "size", "stream", "pool", "phase", "class"];

interface Textures {
  rects: WebGLTexture;
  match: WebGLTexture | null;
  version: number;
}

export class MapGL {
  private textures = new Map<Tile, Textures>();
  private segments: { rects: WebGLTexture; order: Uint32Array } | null = null;
  private order: WebGLBuffer;
  private image: WebGLTexture;
  private imageSize = "";
  private corners: WebGLVertexArrayObject;
  private program: WebGLProgram;
  private coverProgram: WebGLProgram;
  private places = new Map<string, WebGLUniformLocation | null>();
  private keys: WebGLTexture;
  private palette: WebGLTexture;
  private cover: WebGLTexture | null = null;
  private mode = 0;
  private edge: [number, number, number] = [0, 0, 0];

  private constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly gl: WebGL2RenderingContext,
  ) {
    this.program = this.link(VERTEX, FRAGMENT);
    this.coverProgram = this.link(COVER_VERTEX, COVER_FRAGMENT);
    this.keys = this.texture();
    this.palette = this.texture();
    this.corners = gl.createVertexArray();
    this.image = this.texture();
    gl.bindVertexArray(this.corners);
    this.order = gl.createBuffer();
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.order);
    gl.bindVertexArray(null);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  // Whether WebGL2 runs on a GPU. In software the page draws faster by itself.
  static isFast(): boolean {
    const gl = document.createElement("canvas").getContext("webgl2");
    if (!gl) return false;
    const names = gl.getExtension("WEBGL_debug_renderer_info");
    const name = String(gl.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : gl.RENDERER));
    gl.getExtension("WEBGL_lose_context")?.loseContext();
    return !/swiftshader|llvmpipe|softpipe|software|basic render/i.test(name);
  }

  // Null if the browser has no WebGL2.
  static create(canvas: HTMLCanvasElement): MapGL | null {
    const gl = canvas.getContext("webgl2", { antialias: false, alpha: false });
    try {
      return gl ? new MapGL(canvas, gl) : null;
    } catch {
      return null;
    }
  }

  private link(vertex: string, fragment: string): WebGLProgram {
    const gl = this.gl;
    const program = gl.createProgram();
    for (const [type, source] of [
      [gl.VERTEX_SHADER, vertex],
      [gl.FRAGMENT_SHADER, fragment],
    ] as const) {
      const shader = gl.createShader(type)!;
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS))
      throw new Error(`The shader does not link: ${gl.getProgramInfoLog(program) ?? ""}`);
    return program;
  }

  private at(program: WebGLProgram, name: string): WebGLUniformLocation | null {
    const key = `${program === this.program ? "p" : "c"}${name}`;
    let place = this.places.get(key);
    if (place === undefined) {
      place = this.gl.getUniformLocation(program, name);
      this.places.set(key, place);
    }
    return place;
  }

  private texture(filter: number = this.gl.NEAREST): WebGLTexture {
    const gl = this.gl;
    const texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, filter);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, filter);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
    return texture;
  }

  // places: key -> number of a colour.
  setColors(by: string, places: Uint8Array, colors: string[], edge: string): void {
    const gl = this.gl;
    this.mode = Math.max(0, MODES.indexOf(by));
    this.edge = rgb(edge).map((v) => v / 255) as [number, number, number];
    const rows = Math.max(1, Math.ceil(places.length / 4096));
    const padded = new Uint8Array(rows * 4096).fill(colors.length - 1);
    padded.set(places);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    gl.bindTexture(gl.TEXTURE_2D, this.keys);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R8UI, 4096, rows, 0, gl.RED_INTEGER, gl.UNSIGNED_BYTE, padded);
    const pixels = new Uint8Array(256 * 4);
    for (let i = 0; i < 256; i++) pixels.set([...rgb(colors[Math.min(i, colors.length - 1)]!), 255], i * 4);
    gl.bindTexture(gl.TEXTURE_2D, this.palette);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
  }

  setCoverage(columns: number, rows: number, bytes: Uint8Array): void {
    const gl = this.gl;
    this.cover = this.texture(gl.NEAREST);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R8, columns, rows, 0, gl.RED, gl.UNSIGNED_BYTE, bytes);
  }

  setSegments(s: Segments): void {
    const words = new Uint32Array(Math.max(1, Math.ceil(s.count / PER_ROW)) * PER_ROW * WORDS);
    for (let i = 0; i < s.count; i++) words.set([s.x0[i]!, s.x1[i]!, s.y[i]!, s.units[i]!], i * WORDS);
    const order = new Uint32Array(s.count * 6);
    for (let i = 0; i < s.count; i++) order.set([4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 2, 4 * i + 1, 4 * i + 3], i * 6);
    this.segments = { rects: this.rectTexture(words), order };
  }

  // A texture of rectangles, two texels each.
  private rectTexture(words: Uint32Array): WebGLTexture {
    const gl = this.gl;
    const texture = this.texture();
    const rows = words.length / WORDS / PER_ROW;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32UI, PER_ROW * 2, rows, 0, gl.RGBA_INTEGER, gl.UNSIGNED_INT, words);
    return texture;
  }

  private upload(tile: Tile): Textures {
    const gl = this.gl;
    let textures = this.textures.get(tile);
    if (!textures) {
      textures = { rects: this.rectTexture(tile.instances!), match: null, version: 0 };
      this.textures.set(tile, textures);
    }
    if (textures.version !== tile.version) {
      textures.version = tile.version;
      if (textures.match) gl.deleteTexture(textures.match);
      textures.match = null;
      if (tile.match) {
        textures.match = this.texture();
        gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
        gl.texImage2D(
          gl.TEXTURE_2D,
          0,
          gl.R8UI,
          PER_ROW,
          tile.match.length / PER_ROW,
          0,
          gl.RED_INTEGER,
          gl.UNSIGNED_BYTE,
          tile.match,
        );
      }
    }
    return textures;
  }

  private bindRects(texture: WebGLTexture): void {
    const gl = this.gl;
    gl.activeTexture(gl.TEXTURE2);
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.activeTexture(gl.TEXTURE0);
  }

  // Draws a picture: segments, hidden blocks, and the blocks that `raster` has sorted.
  draw(w: Window, raster: Raster, look: Look): void {
    const gl = this.gl;
    const [width, tall] = [this.canvas.width, this.canvas.height];
    gl.viewport(0, 0, width, tall);
    const [r, g, b] = rgb(look.background);
    gl.clearColor(r / 255, g / 255, b / 255, 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.useProgram(this.program);
    const p = this.program;
    const ox = Math.max(0, Math.floor(w.x0));
    const oy = Math.max(0, Math.floor(w.y0));
    gl.uniform2ui(this.at(p, "origin"), ox, oy);
    gl.uniform2f(this.at(p, "fraction"), w.x0 - ox, w.y0 - oy);
    gl.uniform2f(this.at(p, "scale"), width / (w.x1 - w.x0), tall / (w.y1 - w.y0));
    gl.uniform2f(this.at(p, "size"), width, tall);
    gl.uniform3f(this.at(p, "edge"), ...this.edge);
    gl.uniform1f(this.at(p, "density"), look.density);
    gl.uniform1i(this.at(p, "keys"), 0);
    gl.uniform1i(this.at(p, "palette"), 1);
    gl.uniform1i(this.at(p, "rects"), 2);
    gl.uniform1i(this.at(p, "matches"), 3);
    gl.activeTexture(gl.TEXTURE3);
    gl.bindTexture(gl.TEXTURE_2D, this.keys);
    gl.activeTexture(gl.TEXTURE1);
    gl.bindTexture(gl.TEXTURE_2D, this.palette);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, this.keys);
    gl.bindVertexArray(this.corners);
    // All indices of the picture in one buffer: segments, then blocks.
    const before = this.segments?.order.length ?? 0;
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, (before + raster.used) * 4, gl.DYNAMIC_DRAW);
    if (this.segments) {
      const [sr, sg, sb] = rgb(look.segment);
      gl.bufferSubData(gl.ELEMENT_ARRAY_BUFFER, 0, this.segments.order);
      gl.uniform1i(this.at(p, "mode"), -1);
      gl.uniform4f(this.at(p, "plain"), sr / 255, sg / 255, sb / 255, 1);
      this.bindRects(this.segments.rects);
      gl.drawElements(gl.TRIANGLES, before, gl.UNSIGNED_INT, 0);
    }
    const x = (v: number): number => ((v - w.x0) / (w.x1 - w.x0)) * 2 - 1;
    const y = (v: number): number => ((v - w.y0) / (w.y1 - w.y0)) * 2 - 1;
    if (this.cover) this.quad(this.cover, false, look.hidden, [x(0), y(0), x(look.entries), y(look.height)]);
    this.uploadImage(raster);
    this.quad(this.image, true, look.hidden, [-1, -1, 1, 1]);
    gl.useProgram(p);
    gl.bindTexture(gl.TEXTURE_2D, this.keys);
    gl.bindVertexArray(this.corners);
    gl.uniform1i(this.at(p, "mode"), this.mode);
    gl.uniform1i(this.at(p, "filtered"), look.isFiltered ? 1 : 0);
    gl.uniform1ui(this.at(p, "marked"), look.marked);
    if (raster.used > 0) gl.bufferSubData(gl.ELEMENT_ARRAY_BUFFER, before * 4, raster.indices, 0, raster.used);
    for (const run of raster.runs) {
      const textures = this.upload(run.tile);
      gl.activeTexture(gl.TEXTURE3);
      gl.bindTexture(gl.TEXTURE_2D, textures.match ?? this.keys);
      this.bindRects(textures.rects);
      gl.drawElements(gl.TRIANGLES, run.count, gl.UNSIGNED_INT, (before + run.start) * 4);
    }
    gl.bindVertexArray(null);
  }

  // The image of the small rectangles.
  private uploadImage(raster: Raster): void {
    const gl = this.gl;
    const { width, height } = raster;
    const pixels = new Uint8Array(raster.pixels.buffer);
    gl.bindTexture(gl.TEXTURE_2D, this.image);
    const size = `${width}x${height}`;
    if (this.imageSize === size)
      gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
    else gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, width, height, 0, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
    this.imageSize = size;
  }

  // Draws a texture: the image as it is, or the share of hidden blocks in one colour.
  private quad(texture: WebGLTexture, isImage: boolean, tint: string, place: [number, number, number, number]): void {
    const gl = this.gl;
    const c = this.coverProgram;
    gl.useProgram(c);
    const [r, g, b] = rgb(tint);
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.uniform1i(this.at(c, "cover"), 0);
    gl.uniform1i(this.at(c, "image"), isImage ? 1 : 0);
    gl.uniform3f(this.at(c, "tint"), r / 255, g / 255, b / 255);
    gl.uniform4f(this.at(c, "place"), ...place);
    gl.bindVertexArray(null);
    gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
  }

  // Waits until the picture is there, for measurements.
  finish(): void {
    const pixel = new Uint8Array(4);
    this.gl.readPixels(0, 0, 1, 1, this.gl.RGBA, this.gl.UNSIGNED_BYTE, pixel);
  }

  lose(): void {
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }
}

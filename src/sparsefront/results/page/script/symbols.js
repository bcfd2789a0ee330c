// Outlines of the markers, as SVG paths around (x, y), all clockwise: where two overlap in one path no hole appears.
const SYMBOLS = {
  circle: (x, y, r) => `M${x - r},${y}a${r},${r} 0 1,1 ${2 * r},0a${r},${r} 0 1,1 ${-2 * r},0`,
  square: (x, y, r) => `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  diamond: (x, y, r) => `M${x},${y - 1.3 * r}l${1.3 * r},${1.3 * r}l${-1.3 * r},${1.3 * r}l${-1.3 * r},${-1.3 * r}z`,
  "triangle-up": (x, y, r) => `M${x},${y - 1.2 * r}l${1.2 * r},${2.1 * r}h${-2.4 * r}z`,
  "triangle-down": (x, y, r) => `M${x},${y + 1.2 * r}l${-1.2 * r},${-2.1 * r}h${2.4 * r}z`,
  "triangle-left": (x, y, r) => `M${x - 1.2 * r},${y}l${2.1 * r},${-1.2 * r}v${2.4 * r}z`,
  "triangle-right": (x, y, r) => `M${x + 1.2 * r},${y}l${-2.1 * r},${1.2 * r}v${-2.4 * r}z`,
  "thin-diamond": (x, y, r) => `M${x},${y - 1.4 * r}l${0.8 * r},${1.4 * r}l${-0.8 * r},${1.4 * r}l${-0.8 * r},${-1.4 * r}z`,
  pentagon: (x, y, r) => regular(x, y, r, 5),
  hexagon: (x, y, r) => regular(x, y, r, 6),
  cross: (x, y, r) => polygon(x, y, r, [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4],
    [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]]),
  x: (x, y, r) => polygon(x, y, r, [[0, -0.55], [0.65, -1.2], [1.2, -0.65], [0.55, 0], [1.2, 0.65], [0.65, 1.2],
    [0, 0.55], [-0.65, 1.2], [-1.2, 0.65], [-0.55, 0], [-1.2, -0.65], [-0.65, -1.2]]),
  star: (x, y, r) => polygon(x, y, r, Array.from({ length: 10 }, (_, corner) => {
    const angle = Math.PI * (corner / 5 - 0.5), length = corner % 2 ? 0.7 : 1.8;
    return [length * Math.cos(angle), length * Math.sin(angle)];
  })),
};

function polygon(x, y, r, corners) {
  return `M${corners.map(([right, down]) => `${x + r * right},${y + r * down}`).join("L")}z`;
}

// With a corner on top.
function regular(x, y, r, corners) {
  return polygon(x, y, r, Array.from({ length: corners }, (_, corner) => {
    const angle = 2 * Math.PI * (corner / corners - 0.25);
    return [1.2 * Math.cos(angle), 1.2 * Math.sin(angle)];
  }));
}

function symbolIcon(symbol, color) {
  return `<svg class="icon" viewBox="0 0 16 16"><path d="${SYMBOLS[symbol](8, 8, 5)}" fill="${color}"/></svg>`;
}

import eslint from "@eslint/js";
import ts from "typescript-eslint";

export default ts.config(
  { ignores: ["node_modules/**", "wasm/**"] },
  {
    files: ["src/**/*.ts"],
    extends: [eslint.configs.recommended, ...ts.configs.recommendedTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      "no-control-regex": "off",
      "@typescript-eslint/no-non-null-assertion": "off",
      "@typescript-eslint/require-await": "off",
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      eqeqeq: ["error", "always", { null: "ignore" }],
      "no-restricted-properties": [
        "error",
        { property: "innerHTML" },
        { property: "outerHTML" },
        { property: "insertAdjacentHTML" },
      ],
    },
  },
  {
    files: ["test/**/*.mjs"],
    extends: [eslint.configs.recommended],
    languageOptions: {
      globals: {
        process: "readonly",
        console: "readonly",
        Buffer: "readonly",
        URL: "readonly",
        window: "readonly",
        document: "readonly",
        performance: "readonly",
        setTimeout: "readonly",
        requestAnimationFrame: "readonly",
        location: "readonly",
        DOMParser: "readonly",
        structuredClone: "readonly",
        atob: "readonly",
        DataTransfer: "readonly",
        File: "readonly",
        DragEvent: "readonly",
      },
    },
  },
);

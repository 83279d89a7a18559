// Opens recordings and changes settings in the page, as a person does.

const isLoaded = () => document.documentElement.dataset.loaded === "true";

// Opens a file by the button, and shows the panel "What if".
export async function openRecording(page, path) {
  const chooser = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Open a recording", exact: true }).click();
  await page.evaluate(() => delete document.documentElement.dataset.loaded);
  await (await chooser).setFiles(path);
  await page.waitForFunction(isLoaded, null, { timeout: 300000 });
  await page.getByRole("tab", { name: "What if" }).click();
}

// Sets a setting, or takes it back. Returns the times in ms from the change to the answer of the Worker and to the new
// picture, after everything is drawn.
export async function changeSetting(page, name, isSet) {
  await page.evaluate(() => performance.clearMarks());
  if (name === "max_split_size_mb")
    await page.getByRole("slider", { name }).evaluate((slider, value) => {
      slider.value = value;
      slider.dispatchEvent(new window.Event("input", { bubbles: true }));
    }, isSet ? "5" : "0");
  else await page.getByLabel(name).setChecked(isSet);
  await page.waitForFunction(
    () =>
      performance.getEntriesByName("weir-whatif-drawn").length > 0 &&
      document.querySelector(".panel button.primary")?.disabled === false,
    null,
    { timeout: 120000 },
  );
  await page.waitForFunction(isLoaded, null, { timeout: 120000 });
  return page.evaluate(() => {
    const at = (mark) => performance.getEntriesByName(`weir-whatif-${mark}`).pop().startTime;
    return { answered: at("answered") - at("changed"), drawn: at("drawn") - at("changed") };
  });
}

// Pictures of one's own, as the gateway takes them.

/** A longer side of more pixels is of no use: models see less. */
const SIDE = 1280;
const QUALITY = 0.9;

/** A picture as a JPEG, not larger than `SIDE`. Fails where the browser cannot read it. */
export async function asJpeg(file: Blob): Promise<Blob> {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  canvas.getContext("2d")!.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return new Promise((resolve, reject) =>
    canvas.toBlob((jpeg) => (jpeg ? resolve(jpeg) : reject(new Error("no picture"))), "image/jpeg", QUALITY),
  );
}
